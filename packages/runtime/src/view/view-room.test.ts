import { setImmediate as nextTurn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { ViewRoom } from './view-room.js';

test('a room admits views until it is full, and then in order as soon as others have left', async () => {
  const room = new ViewRoom(100);
  await room.enter(60);
  const entered: number[] = [];
  const waiting = [70, 30, 10].map((size) => room.enter(size).then(() => entered.push(size)));
  await nextTurn();
  // The small views would fit but must not overtake: a large view would otherwise wait forever.
  expect(entered).toEqual([]);
  room.leave(60);
  await Promise.all(waiting.slice(0, 2));
  await nextTurn();
  expect({ entered, used: room.usedBytes }).toEqual({ entered: [70, 30], used: 100 });
  room.leave(70);
  await Promise.all(waiting);
  expect(room.usedBytes).toBe(40);
});

test('a view that is larger than the whole room is admitted when the room is empty', async () => {
  const room = new ViewRoom(100);
  room.take(10);
  let isIn = false;
  const large = room.enter(5_000).then(() => {
    isIn = true;
  });
  await nextTurn();
  expect(isIn).toBe(false);
  room.leave(10);
  await large;
  const next = room.enter(1);
  room.leave(5_000);
  await next;
  expect(room.usedBytes).toBe(1);
});
