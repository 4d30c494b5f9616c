"""Where losses do not fall, and how layers are named."""

from layerdescent.layers import every_layer, layers_in_words, rises


def test_layers_in_words_and_rises() -> None:
    assert layers_in_words((1, 2)) == "layers 1 and 2"
    assert rises([3, 2, 2, 1], range(4)) == (2,)
    assert rises([3, 2, 1.99999, 1], range(4), least_fall=1e-3) == (2,)
    assert rises([3, 5, 2, 4], (0, 2, 3)) == (3,)
    assert rises({1: 3.0, 4: 2.0, 9: 2.5}, (1, 4, 9)) == (9,)


def test_a_loss_that_is_not_a_number_does_not_fall() -> None:
    assert rises([3.0, float("nan"), 1.0], range(3)) == (1, 2)


def test_who_descends() -> None:
    assert every_layer(range(4), 3) == "every layer"
    assert every_layer(range(1, 4), 3) == "every layer from 2 on"
    assert every_layer((0, 2, 3), 3) == "every layer of the grid (0, 2 and 3)"
