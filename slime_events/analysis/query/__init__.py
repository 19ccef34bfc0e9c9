"""SQL over a run, by DuckDB: `open_tables` for notebooks, `tables_of` where an event loop has the run open.

fact      what one kind of event says, as rows (facts.py): Parquet files of archived segments (cache.py), memory for
          what was said since (run_facts.py)
table     documented, a view over facts (tables/)
query     a database of its own, of the facts that the query's plan scans (database.py)
"""

from slime_events.analysis.query.answer import Answer
from slime_events.analysis.query.open_tables import OpenTables, open_tables
from slime_events.analysis.query.run_tables import RunTables, samples_where, tables_of

__all__ = ["Answer", "OpenTables", "RunTables", "open_tables", "samples_where", "tables_of"]
