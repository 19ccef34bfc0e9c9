"""`Table`: a table of `query`. One definition gives its documentation, its SQL view and its column types."""

from typing import Annotated, NamedTuple

from schemas.doc import doc

TEXT, INT, FLOAT, TIME, BOOL, JSON = "VARCHAR", "BIGINT", "DOUBLE", "TIMESTAMP", "BOOLEAN", "JSON"
TEXTS, INTS = "VARCHAR[]", "BIGINT[]"
NUMBERS = "MAP(VARCHAR, DOUBLE)"


class Column(NamedTuple):
    """A column of a table."""

    name: Annotated[str, doc("name in SQL")]
    type: Annotated[str, doc("type in SQL")]
    sql: Annotated[str, doc("its value, an expression over the table's `source`")]
    description: Annotated[str, doc("one line, with the unit; shown by `query --schema` and docs/tables.md")]


class Table(NamedTuple):
    """A table, defined as a view."""

    name: Annotated[str, doc("name in SQL")]
    description: Annotated[str, doc("one or two sentences")]
    source: Annotated[str, doc("the FROM clause, over event tables and tables before this one")]
    columns: Annotated[tuple[Column, ...], doc("its columns, in order")]

    def statement(self, *, stored: bool = False) -> str:
        """Return the statement that creates the view, or with `stored` a table of the same rows."""
        selected = ",\n".join(f'CAST({column.sql} AS {column.type}) AS "{column.name}"' for column in self.columns)
        return f"CREATE {'TABLE' if stored else 'VIEW'} {self.name} AS SELECT\n{selected}\nFROM {self.source}"


RUN = Column("run", TEXT, "t.run", "run whose log has it; ancestors only with `--with-parent`")
IN_LOG = (RUN, Column("position", INT, "t.position", "position in that log, from 1"))
