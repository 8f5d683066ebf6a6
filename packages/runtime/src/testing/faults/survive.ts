import { type CrashOptions, type CrashReport, crashEverywhere } from './crash-everywhere.js';
import { everyFault, fewFaults } from './crash-points.js';
import type { Scenario } from './scenario.js';

/** Everything is cut, however long it takes: `BOXCAR_FAULTS=all`. */
// biome-ignore lint/style/noProcessEnv: a switch of the tests, which no program reads.
const IS_THOROUGH = process.env.BOXCAR_FAULTS === 'all';

export const isThorough = (): boolean => IS_THOROUGH;

/** What need not be cut again by the scenarios of one file: what those of other files do, which are cut there. */
export async function coverageOf(scenarios: readonly Scenario[]): Promise<Set<string>> {
  const covered = new Set<string>();
  for (const scenario of scenarios) {
    const choose: CrashOptions['choose'] = (sent) => {
      fewFaults(sent, covered);
      return [];
    };
    await crashEverywhere(scenario, { concurrency: 1, choose });
  }
  return covered;
}

/**
 * Crashes a scenario where it matters, or everywhere, and prints what was struck.
 *
 * @throws Error with the first failures, or when hardly anything was struck.
 */
export async function survive(
  scenario: Scenario,
  {
    covered,
    atLeast = 5,
    ...options
  }: CrashOptions & { readonly covered: Set<string>; readonly atLeast?: number },
): Promise<CrashReport> {
  const report = await crashEverywhere(scenario, {
    choose: (sent) => (IS_THOROUGH ? everyFault(sent) : fewFaults(sent, covered)),
    ...options,
  });
  const { cases, struck, absent, rescued, statements, failures } = report;
  console.log(
    `${scenario.name}: ${struck} of ${cases} faults struck among ${statements.length} statements, ${rescued} times another worker finished`,
  );
  if (failures.length > 0)
    throw new Error(`${failures.length} failures:\n${failures.slice(0, 3).join('\n\n')}`);
  if (struck < atLeast || rescued === 0 || absent > cases / 3)
    throw new Error(`too little was struck: ${JSON.stringify({ cases, struck, absent, rescued })}`);
  return report;
}
