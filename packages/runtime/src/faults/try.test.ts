import { test } from 'vitest';
import { crashEverywhere } from '../testing/faults/crash-everywhere.js';
import { everyFault, fewFaults } from '../testing/faults/crash-points.js';
import * as olds from '../testing/faults/scenarios.js';
import * as ends from '../testing/faults/scenarios-ends.js';
import * as joins from '../testing/faults/scenarios-joins.js';

const covered = new Set<string>();
const only = process.env.ONLY?.split(',');
for (const [name, scenario] of Object.entries({ ...olds, ...joins, ...ends })) {
  if (only !== undefined && !only.includes(name)) continue;
  test(name, { timeout: 300_000 }, async () => {
    const t = performance.now();
    const r = await crashEverywhere(scenario, {
      choose: (sent) => (process.env.BOXCAR_FAULTS === 'all' ? everyFault(sent) : fewFaults(sent, covered)),
      ...(process.env.DEATH === undefined
        ? {}
        : {
            afterDeathAt: (sent) =>
              everyFault(sent).filter(
                (f) => f.scope === 'process' && f.at.text.includes('json_to_recordset'),
              )[Number(process.env.DEATH)]!,
          }),
    });
    console.log(
      name,
      'cases',
      r.cases,
      'struck',
      r.struck,
      'absent',
      r.absent,
      'rescued',
      r.rescued,
      'FAILURES',
      r.failures.length,
      'statements',
      r.statements.length,
      new Set(r.statements).size,
      Math.round(performance.now() - t),
    );
    console.log(
      r.failures
        .slice(0, Number(process.env.SHOW ?? 3))
        .map((f) => f.slice(0, 3000))
        .join('\n\n'),
    );
  });
}
