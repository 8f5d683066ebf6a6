import { reportSchema } from './findings.js';
import type { SurveyRun } from './run-survey.js';

const MAX_SHOWN = 5;

/** A run as text for people. */
export function renderRun({ status, run_id, turns, steps, deliverable, error }: SurveyRun): string {
  const head = `${status}: run ${run_id}, ${turns} turns, ${steps} steps`;
  const parsed = reportSchema.safeParse(deliverable);
  if (!parsed.success) return [head, error?.message ?? JSON.stringify(deliverable)].join('\n');
  const { summary, by_folder, by_language, longest_functions } = parsed.data;
  const folderWidth = Math.max(...by_folder.map(({ folder }) => folder.length));
  return [
    head,
    '',
    summary,
    '',
    ...by_folder.map(
      ({ folder, files, lines, exports, todos }) =>
        `${folder.padEnd(folderWidth)}  ${lines} lines in ${files} files, ${exports} exports, ${todos} TODOs`,
    ),
    '',
    ...by_language
      .slice(0, MAX_SHOWN)
      .map(({ language, files, lines }) => `${language}: ${lines} lines in ${files} files`),
    '',
    ...longest_functions
      .slice(0, MAX_SHOWN)
      .map(({ name, file, line, lines }) => `${lines} lines: ${name} (${file}:${line})`),
  ].join('\n');
}
