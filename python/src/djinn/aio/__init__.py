"""Client for ``asyncio``, with the names of the synchronous client.

>>> import asyncio, djinn
>>> async def story():
...     async with djinn.aio.connect() as client:
...         model = await client.model()
...         async for token in model.generate("Once upon a time", 4, temperature=0, stream=True):
...             print(token, end="")
>>> asyncio.run(story())
, there was a
"""

from djinn.aio._link import Stream
from djinn.aio.client import Client, connect
from djinn.aio.model import Model
from djinn.aio.session import Session

__all__ = ["Client", "Model", "Session", "Stream", "connect"]
