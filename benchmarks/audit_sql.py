"""The audit's questions as SQL, asked of DuckDB over the same files.

Order, gaps, repeats and agreement come out of one pass: within each track (what one member sent on
a stream, or delivered of one origin) a window in the order of idx compares each run with the one
before, and one row is left of each track and view. A hash stands for the track's columns: that
halves what is sorted. Tracks with a break are asked about again, exactly, as the audit reads again
what it has flagged. The other rules are questions of their own: about views, content and missing
rows.
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

CORE = ("N1", "G2 N2", "G1", "N11", "VS2", "VS3", "VS4", "VS5", "VS6")
"""In order, without a gap, once, as far as was sent (G1), of the dead (N11); and in each view what
was sent in it, all of it, the same for all who go on."""

ALL = (*CORE, "N3", "VS1", "content")

_RUNS = """
    SELECT hash(node, inc, peer, peer_inc, stream, event = 'send') AS track,
           event = 'open' AS is_open, idx, seqno, seqno2, view
    FROM rows WHERE event IN ('deliver', 'send', 'open')
"""

_TRACKS = f"""
    CREATE OR REPLACE TEMP TABLE in_views AS
    SELECT track, view,
           count(*) FILTER (CASE WHEN is_open THEN seqno < before
                            ELSE seqno <> before + 1 OR seqno2 < seqno END) AS breaks,
           count(*) FILTER (NOT is_open AND seqno <> before + 1 AND before_view = view
                            AND NOT was_open) AS torn,
           min(seqno2) FILTER (is_open) AS opened,
           count(*) FILTER (NOT is_open) AS runs,
           min(seqno) FILTER (NOT is_open) AS first,
           max(seqno2) AS last
    FROM (SELECT *, lag(seqno2, 1, 0) OVER track AS before, lag(view) OVER track AS before_view,
                 lag(is_open, 1, false) OVER track AS was_open
          FROM ({_RUNS}) WINDOW track AS (PARTITION BY track ORDER BY idx))
    GROUP BY track, view
"""

_SUMS = """
    SELECT node, inc, peer, peer_inc, stream, event, count(*), min(seqno), max(seqno2),
           sum(seqno2 - seqno + 1)
    FROM rows WHERE event IN ('deliver', 'send', 'open') GROUP BY ALL
"""

_MEMBERS = """
    CREATE OR REPLACE TEMP TABLE views AS
    SELECT node, inc, idx, view, view_creator, members, part, cut FROM rows WHERE event = 'view';

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
    FROM named
"""

_NAMED = """
    CREATE OR REPLACE TEMP TABLE known AS
    SELECT here.node, here.inc, there.node AS peer, there.inc AS peer_inc, there.key AS peer_key,
           stream, is_sent, here.is_dead AS is_own_dead, there.is_dead,
           hash(here.node, here.inc, there.node, there.inc, stream, is_sent) AS track
    FROM members AS here, members AS there,
         (SELECT unnest([0, 1])::BIGINT AS stream), (SELECT unnest([true, false]) AS is_sent);

    CREATE OR REPLACE TEMP TABLE tracks AS
    SELECT found.*, known.* EXCLUDE (track)
    FROM (SELECT track, sum(breaks) AS breaks, min(opened) AS opened, sum(runs) AS runs,
                 min(first) AS first, max(last) AS last
          FROM in_views GROUP BY track) AS found LEFT JOIN known USING (track);

    CREATE OR REPLACE TEMP TABLE stays AS
    SELECT in_views.*, known.* EXCLUDE (track) FROM in_views JOIN known USING (track)
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
"""

_IN_VIEWS = """
    WITH taken AS (FROM stays WHERE NOT is_sent AND runs > 0),
         sent AS (FROM stays WHERE is_sent),
         going AS (
           SELECT node, inc, view, lead(view) OVER lives AS next, lead(part) OVER lives AS part
           FROM views WINDOW lives AS (PARTITION BY node, inc ORDER BY idx)),
         steps AS (FROM going WHERE next IS NOT NULL),
         origins AS (SELECT DISTINCT peer, peer_inc, peer_key, stream, view FROM taken),
         through AS (
           SELECT steps.*, origins.* EXCLUDE (view), coalesce(taken.last, 0) AS last
           FROM steps JOIN origins USING (view)
             LEFT JOIN taken USING (node, inc, view, peer, peer_inc, stream))
    SELECT 'VS2' FROM taken LEFT JOIN sent USING (peer, peer_inc, stream, view)
      WHERE (sent.last IS NULL OR taken.last > sent.last) AND NOT taken.is_dead
        OR taken.first < sent.first
    UNION ALL SELECT 'VS3' FROM taken LEFT JOIN sent USING (peer, peer_inc, stream, view)
      WHERE taken.torn > 0 OR taken.first > sent.first
    UNION ALL SELECT 'VS3' FROM stays
      WHERE NOT is_sent AND opened <> coalesce(
        (SELECT max(last) FROM sent
         WHERE (sent.peer, sent.peer_inc, sent.stream) = (stays.peer, stays.peer_inc, stays.stream)
           AND sent.view < stays.view), 0)
    UNION ALL SELECT 'VS4' FROM steps JOIN sent USING (view)
        LEFT JOIN taken ON (taken.node, taken.inc, taken.view) = (steps.node, steps.inc, steps.view)
          AND (taken.peer, taken.peer_inc, taken.stream) = (sent.peer, sent.peer_inc, sent.stream)
      WHERE list_contains(steps.part, sent.peer_key) AND coalesce(taken.last, 0) < sent.last
    UNION ALL SELECT 'VS5' FROM through WHERE stream = 1 OR list_contains(part, peer_key)
      GROUP BY view, next, peer, peer_inc, stream HAVING count(DISTINCT last) > 1
    UNION ALL SELECT 'VS6' FROM through JOIN taken USING (view, peer, peer_inc, stream)
      WHERE stream = 1 AND through.last < taken.last
"""

_SUSPECTS = f"""
    CREATE OR REPLACE TEMP TABLE suspects AS
    SELECT runs.*, tracks.is_sent, tracks.is_dead AND NOT tracks.is_own_dead AS is_dead
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
    UNION ALL SELECT 'G2 N2' FROM covered WHERE seqno <= through
    UNION ALL SELECT 'N11' FROM islands WHERE is_dead
    UNION ALL SELECT 'N3' FROM steps WHERE is_sent AND (seqno <> due OR seqno2 < seqno)
"""

_VIEWS = """
    WITH steps AS (SELECT *, lag(view) OVER (PARTITION BY node, inc ORDER BY idx) AS earlier
                   FROM views)
    SELECT 'VS1' FROM steps WHERE view <= earlier OR NOT list_contains(members, node || '#' || inc)
    UNION ALL SELECT 'VS1' FROM views GROUP BY view_creator, view
      HAVING count(DISTINCT members) > 1
    UNION ALL SELECT 'VS1' FROM views GROUP BY view_creator, view, part
      HAVING count(DISTINCT cut) > 1
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
        violated = self._ask(_AGREEMENT) | self._ask(_IN_VIEWS)
        if self._ask("SELECT track::VARCHAR FROM tracks WHERE breaks > 0"):
            self._connection.execute(_SUSPECTS)
            violated |= self._ask(_BREAKS)
        return violated

    def _ask(self, question: str) -> set[str]:
        return {answer for (answer,) in self._connection.execute(question).fetchall()}
