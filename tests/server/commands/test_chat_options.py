"""server.commands.chat_options: what is sampled where nothing is said."""

from server.commands.chat_options import SENSIBLE_SAMPLING, given, sampling_for


def test_what_was_given_is_kept():
    """Options without a value are left out, and 0 is a value."""
    assert given(temperature=0.0, seed=None, max_tokens=3) == {"temperature": 0.0, "max_tokens": 3}


def test_a_checkpoint_that_recommends_is_left_to_itself():
    """The server fills in what the checkpoint says, so nothing is sent in its place."""
    assert sampling_for({"temperature": 0.6}, {"seed": 3}) == {"seed": 3}


def test_one_that_recommends_nothing_is_sampled_sensibly():
    """The stated defaults stand under what the user chose."""
    assert sampling_for({}, {"temperature": 0}) == {**SENSIBLE_SAMPLING, "temperature": 0}
