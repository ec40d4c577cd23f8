"""The generation server: the path of a request on this level, what its stations need in packages.

In the order in which a request meets them:

    on the event loop     app, schemas, input_processor, call, request, async_engine
    in the engine thread  scheduler, engine, batch, runner, sampler, grammar, output_processor,
                          detokenizer
    on the event loop     streaming

`app` leads to `handlers`, `schemas` and `input_processor` use `inputs` and `structured_output`, the
scheduler uses `planning`, the sampler `sampling`, and `streaming` drives the writers of `answers`
and of `dialects`. Everything is put together in loaded_engine and deployment.
"""
