"""The audit's questions as SQL, asked of DuckDB over the same files.

Order, gaps, repeats and agreement come out of one pass: within each track (what one member sent on
a stream, or delivered of one origin) a window in the order of idx compares each run with the one
before, and one row is left of each track. A hash stands for the track's columns: that halves what
is sorted. Tracks with a break are asked about again, exactly, as the audit reads again what it has
flagged. The other rules are questions of their own: about views, content and missing rows.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from ringcast.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

THREADS = 2
MEMORY = "4GB"
"""Spark takes less."""

CORE = ("N1", "N9", "G2 N2", "G1", "N11", "U1", "U6")
"""In order, without a gap, once, and the same everywhere: as far as was sent (G1), of the dead
(N11), and of their uniform messages (U1, U6)."""

ALL = (*CORE, "N3", "U2", "U4", "G4", "content")

_RUNS = """
    SELECT hash(node, inc, peer, peer_inc, stream, event = 'send') AS track,
           event = 'open' AS is_open, idx, seqno, seqno2
    FROM rows WHERE event IN ('deliver', 'send', 'open')
"""

_TRACKS = f"""
    CREATE OR REPLACE TEMP TABLE found AS
    SELECT track,
           count(*) FILTER (NOT is_open AND seqno <> before + 1)
             + count(*) FILTER (is_open AND seqno < before)
             + count(*) FILTER (NOT is_open AND seqno2 < seqno) AS breaks,
           min(seqno2) FILTER (is_open) AS opened,
           count(*) FILTER (NOT is_open) AS runs,
           min(seqno) FILTER (NOT is_open) AS first,
           max(seqno2) AS last
    FROM (SELECT *, lag(seqno2, 1, 0) OVER (PARTITION BY track ORDER BY idx) AS before
          FROM ({_RUNS}))
    GROUP BY track
"""

_SUMS = """
    SELECT node, inc, peer, peer_inc, stream, event, count(*), min(seqno), max(seqno2),
           sum(seqno2 - seqno + 1)
    FROM rows WHERE event IN ('deliver', 'send', 'open') GROUP BY ALL
"""

_MEMBERS = """
    CREATE OR REPLACE TEMP TABLE views AS
    SELECT node, inc, idx, view, view_creator, members FROM rows WHERE event = 'view';

    CREATE OR REPLACE TEMP TABLE members AS
    WITH keys AS (SELECT DISTINCT unnest(members) AS key FROM views),
         named AS (SELECT key, regexp_extract(key, '^(.*)#', 1) AS node,
                          regexp_extract(key, '#([0-9]+)$', 1)::UBIGINT AS inc FROM keys),
         stopped AS (SELECT DISTINCT node, inc FROM rows WHERE event = 'stop'),
         ends AS (SELECT node, inc, arg_max(members, idx) AS kept, list(members) AS seen
                  FROM views GROUP BY node, inc),
         departed AS (SELECT DISTINCT key FROM keys, ends
                      WHERE list_contains(flatten(seen), key) AND NOT list_contains(kept, key))
    SELECT node, inc, key,
           key IN (FROM departed) AND (node, inc) NOT IN (SELECT (node, inc) FROM stopped)
             AS is_dead
    FROM named;
"""

_NAMED = """
    CREATE OR REPLACE TEMP TABLE tracks AS
    WITH known AS (
      SELECT here.node, here.inc, there.node AS peer, there.inc AS peer_inc, stream, is_sent,
             here.is_dead AS is_own_dead, there.is_dead,
             hash(here.node, here.inc, there.node, there.inc, stream, is_sent) AS track
      FROM members AS here, members AS there,
           (SELECT unnest([0, 1])::BIGINT AS stream), (SELECT unnest([true, false]) AS is_sent))
    SELECT found.*, known.* EXCLUDE (track) FROM found LEFT JOIN known USING (track)
"""

_AGREEMENT = """
    WITH delivered AS (FROM tracks WHERE NOT is_sent AND runs > 0),
         sent AS (FROM tracks WHERE is_sent),
         unsent AS (
           SELECT delivered.*, sent.last AS sent_last FROM delivered LEFT JOIN sent
             USING (peer, peer_inc, stream)
           WHERE sent.last IS NULL OR delivered.last > sent.last OR delivered.first < sent.first)
    SELECT 'G1' FROM unsent WHERE NOT is_dead OR first < 1
    UNION ALL SELECT 'G1' FROM tracks WHERE node IS NULL
    UNION ALL SELECT 'N11' FROM delivered
      WHERE is_dead AND NOT is_own_dead AND first <> coalesce(opened, 0) + 1
    UNION ALL SELECT 'N9' FROM delivered WHERE opened IS NOT NULL AND first <> opened + 1
"""

_SUSPECTS = f"""
    CREATE OR REPLACE TEMP TABLE suspects AS
    SELECT runs.*, tracks.stream, tracks.is_sent,
           tracks.is_dead AND NOT tracks.is_own_dead AS is_dead
    FROM ({_RUNS}) AS runs JOIN tracks USING (track) WHERE breaks > 0
"""

_BREAKS = """
    WITH steps AS (
           SELECT *, coalesce(max(seqno2) OVER earlier, 0) + 1 AS due,
                  coalesce(min(seqno + is_open::BIGINT) OVER earlier, 1) AS low
           FROM suspects
           WINDOW earlier AS (PARTITION BY track ORDER BY idx
                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
         late AS (FROM steps WHERE NOT is_sent AND CASE WHEN is_open THEN seqno + 1 < due
                    ELSE seqno > due OR seqno < low OR seqno2 < seqno END),
         covered AS (
           SELECT *, coalesce(max(seqno2) OVER before, 0) AS through,
                  row_number() OVER before = 1 AS is_first
           FROM suspects WHERE NOT is_sent AND NOT is_open AND seqno <= seqno2
           WINDOW before AS (PARTITION BY track ORDER BY seqno, seqno2
                             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
         islands AS (
           FROM covered WHERE (is_first OR seqno > through + 1) AND NOT EXISTS (
             FROM suspects AS opening WHERE opening.track = covered.track AND opening.is_open
               AND opening.seqno + 1 = covered.seqno))
    SELECT 'N1' FROM late
    UNION ALL SELECT 'U4' FROM late WHERE stream = 1
    UNION ALL SELECT 'G2 N2' FROM covered WHERE seqno <= through
    UNION ALL SELECT 'U2' FROM covered WHERE seqno <= through AND stream = 1
    UNION ALL SELECT 'N9' FROM islands WHERE track IN (SELECT track FROM suspects WHERE is_open)
    UNION ALL SELECT 'U2' FROM islands WHERE stream = 1 AND seqno > 1
    UNION ALL SELECT 'N11' FROM islands WHERE is_dead
    UNION ALL SELECT 'N3' FROM steps WHERE is_sent AND (seqno <> due OR seqno2 < seqno)
"""

_VIEWS = """
    WITH steps AS (SELECT *, lag(view) OVER (PARTITION BY node, inc ORDER BY idx) AS earlier
                   FROM views)
    SELECT 'G4' FROM steps WHERE view <= earlier OR NOT list_contains(members, node || '#' || inc)
    UNION ALL SELECT 'G4' FROM views GROUP BY view_creator, view
      HAVING count(DISTINCT members) > 1
"""

_CONTENT = """
    WITH blocks AS (
      SELECT kind, peer, peer_inc, stream, block, seqno2, block_hash FROM rows
      WHERE event = 'block')
    SELECT 'content' FROM (FROM blocks WHERE kind = 'delivered') AS delivered
      JOIN (FROM blocks WHERE kind = 'sent') AS sent
        USING (peer, peer_inc, stream, block, seqno2)
    WHERE delivered.block_hash <> sent.block_hash
"""

_HOLES = """
    SELECT node FROM (SELECT node, inc, count(*) AS rows, min(idx) AS first, max(idx) AS last
                      FROM rows GROUP BY node, inc)
    WHERE first <> 0 OR rows <> last + 1
"""


def duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ImportError as error:
        raise UsageError('bench audit compares with DuckDB: pip install "ringcast[dev]"') from error


class Questions:
    """A DuckDB of its own over the segments of one directory, while the block lasts."""

    def __init__(self, directory: Path) -> None:
        self._files = str(directory / "*.parquet").replace("'", "''")
        self._spill = directory.with_name("spill")

    def __enter__(self) -> Self:
        config = {
            "threads": THREADS,
            "memory_limit": MEMORY,
            "temp_directory": str(self._spill),
            "preserve_insertion_order": False,
        }
        self._connection = duckdb().connect(config=config)
        self._connection.execute("SET enable_progress_bar = false")
        self._connection.execute(f"CREATE VIEW rows AS FROM read_parquet('{self._files}')")
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        shutil.rmtree(self._spill, ignore_errors=True)

    def core(self) -> set[str]:
        """Which of `CORE` are violated."""
        return self._tracks() & set(CORE)

    def all(self) -> set[str]:
        """Which of `ALL` are violated."""
        violated = self._tracks()
        for question in (_VIEWS, _CONTENT):
            violated |= self._ask(question)
        holes = self._ask(_HOLES)
        if holes:
            raise UsageError(f"rows of {', '.join(sorted(holes))} are missing")
        return violated

    def sums(self) -> int:
        """How many tracks there are, with the sums of each: the least that could be asked. They
        show no order, nor a gap beside a repeat, so that this is no audit."""
        return len(self._connection.execute(_SUMS).fetchall())

    def _tracks(self) -> set[str]:
        for statement in (_TRACKS, _MEMBERS, _NAMED):
            self._connection.execute(statement)
        violated = self._ask(_AGREEMENT)
        if self._ask("SELECT track::VARCHAR FROM tracks WHERE breaks > 0"):
            self._connection.execute(_SUSPECTS)
            violated |= self._ask(_BREAKS)
        return violated

    def _ask(self, question: str) -> set[str]:
        return {answer for (answer,) in self._connection.execute(question).fetchall()}
