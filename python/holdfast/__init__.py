"""Holdfast from Python: files, key-values, logs, topics of items and tables of records, over the Rust client.

    import holdfast

    client = holdfast.connect("127.0.0.1:7400", secret="data/secret")
    client.put("/greeting", b"hello", replace=True)
    with client.open("/greeting") as file:
        print(file.read())

Errors are in :mod:`holdfast.errors`; ``holdfast://`` for fsspec is in :mod:`holdfast.fs`.
"""

from ._holdfast import CategoryInfo, Entry, FileInfo, RecordsInfo, TopicInfo, Usage, __version__
from .client import Client, Log, Table, connect
from .errors import HoldfastError
from .items import Item, Items, Ride
from .records import Branch, Record, Records, Row, Written
from .scribe import Scribe

__all__ = [
    "Branch",
    "CategoryInfo",
    "Client",
    "Entry",
    "FileInfo",
    "HoldfastError",
    "Item",
    "Items",
    "Log",
    "Record",
    "Records",
    "RecordsInfo",
    "Ride",
    "Row",
    "Scribe",
    "Table",
    "TopicInfo",
    "Usage",
    "Written",
    "__version__",
    "connect",
]


def __getattr__(name):
    # Jobs over many machines, imported where they are used.
    if name in ("sort", "mapreduce"):
        import importlib

        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
