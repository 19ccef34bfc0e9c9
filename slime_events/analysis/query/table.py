"""`Table`: a documented table of `query`. Its definition is its documentation, its SQL view and its types in one."""

from typing import NamedTuple

TEXT, INT, FLOAT, TIME, BOOL, JSON = "VARCHAR", "BIGINT", "DOUBLE", "TIMESTAMP", "BOOLEAN", "JSON"
TEXTS, INTS = "VARCHAR[]", "BIGINT[]"
NUMBERS = "MAP(VARCHAR, DOUBLE)"


class Column(NamedTuple):
    """sql: what it is, over the table's `source`. description: one line with the unit."""

    name: str
    type: str
    sql: str
    description: str


class Table(NamedTuple):
    """source: what stands after FROM, over event tables and tables before this one."""

    name: str
    description: str
    source: str
    columns: tuple[Column, ...]

    @property
    def view(self) -> str:
        """The statement that makes it."""
        selected = ",\n".join(f'CAST({one.sql} AS {one.type}) AS "{one.name}"' for one in self.columns)
        return f"CREATE VIEW {self.name} AS SELECT\n{selected}\nFROM {self.source}"


RUN = Column("run", TEXT, "t.run", "the run in whose log it is; another run only with its past (`--with-parent`)")
IN_LOG = (RUN, Column("position", INT, "t.position", "in that log, from 1"))
