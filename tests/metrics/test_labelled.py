from tidelog.metrics.labelled import OTHER, Labelled


def test_each_label_has_its_own_up_to_the_maximum_and_the_rest_is_other() -> None:
    counted: Labelled[list[int]] = Labelled(list, 2)
    for number, label in enumerate(("a", "b", "c", "d", "a")):
        counted.of(label).append(number)
    assert dict(counted) == {"a": [0, 4], "b": [1], OTHER: [2, 3]}


def test_a_label_called_other_is_the_other_one() -> None:
    counted: Labelled[list[int]] = Labelled(list, 2)
    counted.of(OTHER).append(1)
    for label in ("a", "b", "c"):
        counted.of(label).append(2)
    assert dict(counted) == {OTHER: [1, 2], "a": [2], "b": [2]}


def test_what_is_gone_makes_room_and_other_stays() -> None:
    counted: Labelled[list[int]] = Labelled(list, 1)
    counted.of("a")
    counted.of("b").append(1)
    counted.forget(lambda label: True)
    assert dict(counted) == {OTHER: [1]}
    counted.of("b").append(2)
    assert dict(counted) == {OTHER: [1], "b": [2]}


def test_more_may_come_while_it_is_walked_over() -> None:
    counted: Labelled[list[int]] = Labelled(list, 5)
    counted.of("a")
    for label, _ in counted:
        counted.of(label + "a")
    assert len(counted) == 2
