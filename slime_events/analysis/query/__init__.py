"""SQL over a run, by DuckDB: `open_tables` for notebooks, `tables_of` if an event loop has the run open.

event table   rows of one type of event (event_tables.py): Parquet files for archived segments (cache.py), memory
              for later events (run_rows.py)
table         documented view over event tables (tables/)
query         a new database with the event tables that the query's plan scans (database.py)
"""

from slime_events.analysis.query.answer import Answer
from slime_events.analysis.query.open_tables import OpenTables, RunTables, open_tables, samples_where, tables_of

__all__ = ["Answer", "OpenTables", "RunTables", "open_tables", "samples_where", "tables_of"]
