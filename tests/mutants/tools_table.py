"""Planted bugs of small rules that tools and their users notice: commands that cost data, client metrics, epochs, expiry."""

from tests.mutants.table import Mutant

TOOLS_MUTANTS = (
    Mutant(
        "tools: a script is taken for a yes",
        "a command that costs data asks a person or is told --yes",
        "tidelog/cli/output.py",
        "    if is_sure:\n        return\n",
        "    if is_sure or not sys.stdin.isatty():\n        return\n",
    ),
    Mutant(
        "tools: a misspelt field makes a tombstone",
        "a null value is written out",
        "tidelog/cli/produce.py",
        "    _check_fields(document, number)\n",
        "",
    ),
    Mutant(
        "tools: the current epoch unknown before its first append",
        "a client can validate its position in the current leader epoch",
        "tidelog/log/leader_epochs.py",
        "        current = max(self.latest_epoch, leader_epoch)\n",
        "        current = self.latest_epoch\n",
    ),
    Mutant(
        "tools: offsets of topics that a group has left never expire",
        "a group that never ends does not keep offsets for ever",
        "tidelog/groups/offsets.py",
        "            can_expire = not group.may_read(topic)\n",
        "            can_expire = False\n",
    ),
    Mutant(
        "tools: offsets of topics that a group reads expire",
        "a member finds its position however long ago it committed",
        "tidelog/groups/offsets.py",
        "            can_expire = not group.may_read(topic)\n",
        "            can_expire = True\n",
    ),
    Mutant(
        "tools: pushed metrics unpack without a bound",
        "a push takes no more memory than telemetry.max.bytes",
        "tidelog/broker/client_metrics.py",
        "push.metrics, self.telemetry_bytes_max)\n",
        "push.metrics, 1 << 30)\n",
    ),
    Mutant(
        "tools: pushes for an outdated subscription taken",
        "a client learns at its next push that it is asked for something else",
        "tidelog/broker/client_metrics.py",
        "        if push.subscription_id != instance.subscription.subscription_id:\n",
        "        if push.subscription_id is None:\n",
    ),
)
