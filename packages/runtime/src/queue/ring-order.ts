import type { Ring } from '@boxcar/kernel';

/** The highest priority number that BullMQ accepts. */
const LAST_PLACE = 2_097_152;

/**
 * The place of a ring in a queue that delivers the lowest number first. Priority 0 precedes all others. Each further
 * priority step costs one second: a ring of priority 1 passes a ring of priority 8 that is up to seven seconds older,
 * but no ring that is older still. A project that constantly rings with low numbers therefore cannot block the others.
 * The numbers wrap around after 24 days; the sweep corrects this by raising rings.
 */
export function placeOf({ priority = 1 }: Pick<Ring, 'priority'>, now: number): number {
  return priority === 0 ? 0 : 1 + ((Math.floor(now / 1_000) + priority) % LAST_PLACE);
}

/** The priority that gives a ring this place now, to the second. Negative when the place is of an earlier second. */
export function priorityAt(place: number, now: number): number {
  if (place === 0) return 0;
  // 0 would precede all others.
  return place - 1 - (Math.floor(now / 1_000) % LAST_PLACE) || 1;
}
