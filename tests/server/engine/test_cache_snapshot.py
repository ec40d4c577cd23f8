"""Snapshots say how the cache is divided, and nothing they share with the engine can change."""

import random

from engines import make_request
from observed import BLOCK_SIZE, observed_scheduler, step

from server.engine.cache_snapshot import describe, take_snapshot
from server.engine.timeline import Timeline


def watched(**options):
    timeline = Timeline()
    return observed_scheduler(timeline, **options), timeline


def test_empty_cache():
    """With nobody there every block is free and no rate is claimed."""
    scheduler, timeline = watched(num_blocks=11)
    shown = describe(take_snapshot(scheduler, timeline))
    assert (shown["num_blocks"], shown["num_free_blocks"], shown["regions"]) == (10, 10, [])
    assert shown["hit_rate"] is None


def test_regions_in_numbers():
    """A region shows what it uses, what it has reserved and where it lies."""
    scheduler, timeline = watched()
    request = make_request(range(6), max_tokens=9)
    scheduler.add(request)
    step(scheduler)
    step(scheduler)
    (region,) = describe(take_snapshot(scheduler, timeline))["regions"]
    assert region.pop("age_seconds") >= 0
    assert region == {
        "request_id": request.request_id,
        "num_tokens": 8,
        "num_prompt_tokens": 6,
        "num_used_tokens": 7,
        "num_reserved_tokens": 8,
        "num_cached_tokens": 0,
        "num_dropped_tokens": 0,
        "num_shared_blocks": 0,
        "block_ids": tuple(request.region.block_ids),
    }


def test_sharing_names_the_holders():
    """Blocks held by several requests are listed with all of them."""
    scheduler, timeline = watched()
    first, second, other = (
        make_request([*beginning, n], max_tokens=20)
        for n, beginning in enumerate((range(8), range(8), range(20, 28)))
    )
    for request in (first, second, other):
        scheduler.add(request)
        step(scheduler)
    shown = describe(take_snapshot(scheduler, timeline))
    assert shown["shared"] == [
        {
            "block_ids": first.region.block_ids[:2],
            "request_ids": (first.request_id, second.request_id),
        }
    ]
    assert [region["num_shared_blocks"] for region in shown["regions"]] == [2, 2, 0]
    assert [region["num_cached_tokens"] for region in shown["regions"]] == [0, 8, 0]
    assert shown["hit_rate"] == 8 / 27


def test_reusable_blocks_are_listed():
    """What a finished request leaves behind is reusable, and its counts add up."""
    scheduler, timeline = watched(num_blocks=11)
    scheduler.add(make_request(range(9), max_tokens=1))
    step(scheduler)
    shown = describe(take_snapshot(scheduler, timeline))
    assert sorted(shown["reusable_block_ids"]) == [1, 2]
    assert (shown["num_reusable_blocks"], shown["num_free_blocks"]) == (2, 8)
    assert shown["num_held_blocks"] == 0


def test_counts_always_add_up():
    """Free, held and reusable blocks make the pool, and each is what the regions say."""
    draw = random.Random(3)
    scheduler, timeline = watched(num_blocks=20)
    for _ in range(300):
        if draw.random() < 0.4 and len(scheduler.requests) < 6:
            prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 24))]
            scheduler.add(make_request(prompt, max_tokens=draw.randrange(1, 9)))
        step(scheduler)
        shown = describe(take_snapshot(scheduler, timeline))
        held = {block for region in shown["regions"] for block in region["block_ids"]}
        assert len(held) == shown["num_held_blocks"]
        assert held.isdisjoint(shown["reusable_block_ids"])
        parts = ("num_free_blocks", "num_held_blocks", "num_reusable_blocks")
        assert sum(shown[part] for part in parts) == shown["num_blocks"] == 19
        for region in shown["regions"]:
            assert region["num_used_tokens"] <= region["num_reserved_tokens"]
            assert region["num_reserved_tokens"] == BLOCK_SIZE * len(region["block_ids"])


def test_version_changes_with_the_cache_only():
    """Two snapshots have one version exactly if nothing happened between them."""
    scheduler, timeline = watched()
    request = make_request([1, 2, 3])
    scheduler.add(request)
    before = take_snapshot(scheduler, timeline)
    assert take_snapshot(scheduler, timeline).version == before.version
    step(scheduler)
    after = take_snapshot(scheduler, timeline)
    assert after.version != before.version
    blocks = after.regions[0].block_ids
    scheduler.abort(request.request_id)
    assert after.regions[0].block_ids == blocks
    assert take_snapshot(scheduler, timeline).version != after.version
