import type { SurveyProgress } from './run-survey.js';

const BAR = 20;

/** The progress of a survey, in one line of a terminal. */
export function renderProgress({ folders, measured, atWork }: SurveyProgress): string {
  if (folders === 0) return 'dividing the tree';
  const full = Math.floor((measured / folders) * BAR);
  const bar = `${'#'.repeat(full)}${'.'.repeat(BAR - full)}`;
  return `[${bar}] ${measured} of ${folders} folders measured, ${atWork} at work`;
}

/** Shows progress on a terminal in one line that is overwritten; `clear` removes the line. */
export function showProgress(stream: NodeJS.WriteStream): {
  readonly onProgress: ((progress: SurveyProgress) => void) | undefined;
  clear(): void;
} {
  if (!stream.isTTY) return { onProgress: undefined, clear: () => undefined };
  return {
    onProgress: (progress) => void stream.write(`\r\u001b[K${renderProgress(progress)}`),
    clear: () => void stream.write('\r\u001b[K'),
  };
}
