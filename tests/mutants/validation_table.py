"""Planted bugs of the validation of records: each writes what consumers cannot read, or writes in the wrong order."""

from tests.mutants.table import Mutant

VALIDATION_MUTANTS = (
    Mutant(
        "validation: bytes after the last record are ignored",
        "a batch has exactly as many records as it claims",
        "tidelog/records/record_walk.py",
        "                if self._position != len(self._data):\n",
        "                if self._position > len(self._data):\n",
    ),
    Mutant(
        "validation: a run skips its last offset delta byte",
        "the offset deltas of a batch count up from 0",
        "tidelog/records/record_walk.py",
        '        return [low, _HIGH[place : place + length]] if size == 2 else [b""]\n',
        '        return [low] if size == 2 else [b""]\n',
    ),
    Mutant(
        "validation: the header's maximum timestamp is believed",
        "lookups by time find what the records say",
        "tidelog/records/record_walk.py",
        "self.is_complete = self._has_newest or self._skips_runs or self._newest >= self._rules.newest_delta\n",
        "self.is_complete = True\n",
    ),
    Mutant(
        "validation: what does not decompress is stored as it is",
        "a batch is what its header says",
        "tidelog/log/append_check.py",
        "        except RecordError as error:\n            raise _unreadable(error) from error\n"
        "        budget.spend_codec_bytes(len(body))\n",
        "        except RecordError:\n            self._validated = ValidatedBatch(self._view, self._header, self._settings)\n"
        "            return None\n        budget.spend_codec_bytes(len(body))\n",
    ),
    Mutant(
        "validation: a large batch is written before it is validated",
        "nothing is acknowledged before it is validated",
        "tidelog/broker/handlers/produce.py",
        "        self._job = context.broker.validations.submit(list(self._open_batches), self._refused, self._validated)\n",
        "        for each in self._open_batches:\n"
        "            each._validated = ValidatedBatch(each._view, each._header, each._settings)\n"
        "        self._job = context.broker.validations.submit(list(self._open_batches), self._refused, self._validated)\n",
    ),
    Mutant(
        "validation: a later batch overtakes one that is being validated",
        "the batches of a connection are written in their order",
        "tidelog/broker/session.py",
        "        return not self._hold_count and len(",
        "        return self._unmute_timer is None and len(",
    ),
    Mutant(
        "validation: a plain record claims headers that it does not have",
        "every batch is validated before it is written",
        "tidelog/records/record_walk.py",
        " or data[position] or position + 1 != end:\n",
        " or position + 1 != end:\n",
    ),
    Mutant(
        "validation: plain records may have any timestamp",
        "a record with a timestamp out of bounds is refused",
        "tidelog/log/append_check.py",
        "        and newest <= now_ms + settings.timestamp_after_max_ms\n",
        "",
    ),
    Mutant(
        "validation: the next request is read before the batch is written",
        "the batches of a connection are written in their order",
        "tidelog/broker/handlers/produce.py",
        "        try:\n            _append_or_repeat(context, self._request, self._batches, self._on_appended)\n",
        "        session.release()\n"
        "        try:\n            _append_or_repeat(context, self._request, self._batches, self._on_appended)\n",
    ),
    Mutant(
        "validation: a batch outlives its client",
        "a connection that ends takes its unfinished requests along",
        "tidelog/broker/validation_queue.py",
        "        self._batches.clear()\n        self._on_error = self._validated = None\n        self._queue.cancelled(self)\n",
        "",
    ),
)
