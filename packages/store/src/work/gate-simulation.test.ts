import { expect, test } from 'vitest';
import { simulateGate } from '../testing/gate-simulation.js';

/** `npm run soak -- --gate` runs more. */
const seeds = (process.env.BOXCAR_GATE_SEEDS ?? '7').split(',').map(Number);
const turns = Number(process.env.BOXCAR_GATE_TURNS ?? '500');

test.each(seeds)(
  'the gate keeps its limits and its order through outages, cancels and kills, and always makes progress (seed %i)',
  async (seed) => {
    const report = await simulateGate(turns, seed);
    expect(report.broken.slice(0, 10)).toEqual([]);
    // Each kind of event that the test is about has happened.
    for (const what of ['outage', 'pause', 'try', 'failed call', 'wait', 'late', 'kill', 'cancel'])
      expect(report.happened[what] ?? 0, what).toBeGreaterThan(0);
    expect(report.calls).toBeGreaterThan(turns / 2);
  },
  600_000,
);
