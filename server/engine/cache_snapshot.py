"""CacheSnapshot: how the cache is divided at one moment, between two steps.

`take_snapshot` runs in the engine thread and only copies ids and counts; what follows from them,
such as who shares with whom, is worked out by `describe`, in whose thread it does not matter.
Requests appear by their id; no text and no token is known here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass

from server.engine.scheduler import Scheduler
from server.engine.timeline import Timeline, Totals
from server.request import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionSnapshot:
    """One request's share of the pool."""

    request_id: str
    num_tokens: int
    """Prompt and generated tokens known so far."""
    num_prompt_tokens: int
    num_used_tokens: int
    """Tokens whose keys and values are here."""
    num_dropped_tokens: int
    """Tokens whose keys and values were here, and had to make room for later ones."""
    num_reserved_tokens: int
    """Tokens that the blocks have room for."""
    num_cached_tokens: int
    """Tokens that were found written when the region was made."""
    age_seconds: float
    block_ids: tuple[int, ...]
    """In the order of the tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSnapshot:
    """The cache and the queue at one moment."""

    time: float
    """Unix time, in seconds."""
    version: int
    """Equal for snapshots between which nothing happened but the passing of time."""
    block_size: int
    num_blocks: int
    num_free_blocks: int
    """Blocks whose content is unknown."""
    reusable_block_ids: tuple[int, ...]
    """Blocks that nobody holds and that can still be shared, the next to be evicted first."""
    regions: tuple[RegionSnapshot, ...]
    num_waiting: int
    """Requests that have no region."""
    num_preemptions: int
    totals: Totals


def take_snapshot(scheduler: Scheduler, timeline: Timeline) -> CacheSnapshot:
    """Copy what the cache's books say now; call it from the engine thread."""
    now = time.monotonic()
    manager = scheduler.manager
    reusable = manager.reusable_block_ids
    return CacheSnapshot(
        time=now + timeline.wall_clock_offset,
        version=timeline.num_changes,
        block_size=manager.block_size,
        num_blocks=manager.num_blocks,
        num_free_blocks=manager.num_free_blocks - len(reusable),
        reusable_block_ids=reusable,
        regions=tuple(
            _region(request, timeline, now)
            for request in scheduler.requests
            if request.region is not None
        ),
        num_waiting=scheduler.num_waiting,
        num_preemptions=scheduler.num_preemptions,
        totals=timeline.totals,
    )


def describe(snapshot: CacheSnapshot) -> dict[str, object]:
    """The snapshot as JSON, with what follows from it."""
    holders: dict[int, list[str]] = defaultdict(list)
    for region in snapshot.regions:
        for block_id in region.block_ids:
            holders[block_id].append(region.request_id)
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for block_id, request_ids in holders.items():
        if len(request_ids) > 1:
            groups[tuple(request_ids)].append(block_id)
    totals = snapshot.totals
    num_reusable = len(snapshot.reusable_block_ids)
    return {
        "object": "kv_cache",
        "time": snapshot.time,
        "block_size": snapshot.block_size,
        "num_blocks": snapshot.num_blocks,
        "num_free_blocks": snapshot.num_free_blocks,
        "num_reusable_blocks": num_reusable,
        "num_held_blocks": snapshot.num_blocks - snapshot.num_free_blocks - num_reusable,
        "hit_rate": _ratio(totals.num_prefix_hit_tokens, totals.num_prefix_queried_tokens),
        "num_running": len(snapshot.regions),
        "num_waiting": snapshot.num_waiting,
        "num_preemptions": snapshot.num_preemptions,
        "totals": asdict(totals),
        "regions": [_describe_region(region, holders) for region in snapshot.regions],
        "shared": [
            {"block_ids": block_ids, "request_ids": request_ids}
            for request_ids, block_ids in groups.items()
        ],
        "reusable_block_ids": snapshot.reusable_block_ids,
    }


def _region(request: Request, timeline: Timeline, now: float) -> RegionSnapshot:
    region = request.region
    assert region is not None, "asked for requests that have one"
    return RegionSnapshot(
        request_id=request.request_id,
        num_tokens=len(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        num_used_tokens=request.num_computed_tokens - region.num_dropped_tokens,
        num_dropped_tokens=region.num_dropped_tokens,
        num_reserved_tokens=region.capacity,
        num_cached_tokens=region.num_cached_tokens,
        age_seconds=max(0.0, now - timeline.admitted_time(request.request_id)),
        block_ids=tuple(region.block_ids),
    )


def _describe_region(region: RegionSnapshot, holders: dict[int, list[str]]) -> dict[str, object]:
    return {
        "request_id": region.request_id,
        "num_tokens": region.num_tokens,
        "num_prompt_tokens": region.num_prompt_tokens,
        "num_used_tokens": region.num_used_tokens,
        "num_dropped_tokens": region.num_dropped_tokens,
        "num_reserved_tokens": region.num_reserved_tokens,
        "num_cached_tokens": region.num_cached_tokens,
        "num_shared_blocks": sum(len(holders[block_id]) > 1 for block_id in region.block_ids),
        "age_seconds": round(region.age_seconds, 3),
        "block_ids": region.block_ids,
    }


def _ratio(part: int, whole: int) -> float | None:
    """A share from 0 to 1; None when nothing was asked for."""
    return part / whole if whole else None
