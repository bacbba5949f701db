"""Whether a batch that a writer brings is new, comes again, or may not come (semantics 16.5).

The store keeps, of each query and application, the number of its last batch and a digest of that
batch's rows (`model/row_digest.py`), as transactions of its Delta log.
"""

from typing import Final

from pyspark_tseries.errors import ReplayDiffers

QUERY_PREFIX: Final = "tseries:q:"
"""The prefix of a streaming query's mark, before its id."""

APPLICATION_PREFIX: Final = "tseries:app:"
"""The prefix of the mark of a `txnAppId`."""

_DIGEST_PREFIX: Final = "tseries:rows:"


def digest_mark(mark: str) -> str:
    """The transaction with the digest of the last batch of the writer `mark`."""
    return _DIGEST_PREFIX + mark.removeprefix("tseries:")


def make_marks(token: tuple[str, int] | None, digest: int | None) -> dict[str, int]:
    """The transactions of a batch: its number, and the digest of its rows if that is known."""
    if token is None:
        return {}
    return {token[0]: token[1], **({} if digest is None else {digest_mark(token[0]): digest})}


def is_replay(
    root: str, token: tuple[str, int], digest: int | None, last: int | None, stored: int | None
) -> bool:
    """True if a batch is the last one of its writer again, False if it is new.

    Args:
        root: the store's location, for people.
        token: the writer's mark, and the number of the batch.
        digest: of its rows; None: unknown.
        last: the number of the writer's last batch in the store; None if it has none.
        stored: the digest of that batch; None: unknown.

    Raises:
        ReplayDiffers: it lies before that batch, or is that batch with other rows.
    """
    mark, batch = token
    if last is None or batch > last:
        return False
    if batch < last:
        raise _older_batch_error(root, mark, batch, last)
    if digest is not None and stored is not None and digest != stored:
        raise _other_rows_error(root, mark, batch)
    return True


def _older_batch_error(root: str, mark: str, batch: int, last: int) -> ReplayDiffers:
    if mark.startswith(APPLICATION_PREFIX):
        name = mark.removeprefix(APPLICATION_PREFIX)
        return ReplayDiffers(
            f"txnVersion {batch} of txnAppId '{name}' is to be stored, and the store '{root}' has "
            f"its version {last}",
            f"a txnVersion above {last}, or {last} again with the same rows",
            "give the write another txnAppId if it is new work: the numbers of batches begin at 0 "
            "again with a new or deleted checkpoint. Nothing of the batch is stored",
        )
    return ReplayDiffers(
        f"batch {batch} of query {_query_id(mark)} is to be stored, and the store '{root}' has its "
        f"batch {last}: the checkpoint is older than the store, as one that was put back",
        f"a batch above {last}, or batch {last} again with the same rows",
        "put the newer checkpoint back, or a state of the store that is as old as the checkpoint "
        "(a backup of both); or start with a new checkpointLocation, and let the source start "
        "behind what is stored (startingOffsets, startingTimestamp). Nothing of the batch is "
        "stored",
    )


def _other_rows_error(root: str, mark: str, batch: int) -> ReplayDiffers:
    if mark.startswith(APPLICATION_PREFIX):
        name = mark.removeprefix(APPLICATION_PREFIX)
        return ReplayDiffers(
            f"txnVersion {batch} of txnAppId '{name}' comes again with other rows than those that "
            f"the store '{root}' has of it",
            "the same rows, in any order",
            "give the write the same input again; or keep the rows that are stored, and leave this "
            "version out; or, if these are new rows and no repetition, give them a greater "
            "txnVersion. Values such as the current time differ at each evaluation: leave them "
            "out, or persist the DataFrame. Nothing of the batch is stored",
        )
    before = f"'commits/{batch - 1}'" if batch else "a file with the lines v1 and {}"
    return ReplayDiffers(
        f"batch {batch} of query {_query_id(mark)} comes again with other rows than those that the "
        f"store '{root}' has of it: an older checkpoint was put back, the query or its input has "
        "changed, or its rows are not determined by its input (random values, the order of a list)",
        "the same rows, in any order",
        "put the newer checkpoint back; or give the query the code and input of before until this "
        "batch is through; or keep the rows that are stored, and go on with the next batch: copy "
        f"{before} of the checkpoint to 'commits/{batch}'. Nothing of the batch is stored",
    )


def _query_id(mark: str) -> str:
    return mark.rpartition(":")[2]
