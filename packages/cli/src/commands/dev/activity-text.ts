/** Shows events, one line each, for a terminal of 80 columns. */
import { cut, toLine } from '@boxcar/host/base';
import type { Activity } from '@boxcar/store/report';
import { formatShortCount, formatShortDuration } from '../../text/text.js';

const AGENT_WIDTH = 21;

function wordsOf(activity: Activity): readonly [string, string] {
  const failure = 'error_code' in activity && activity.error_code !== null ? ` ${activity.error_code}` : '';
  switch (activity.event) {
    case 'turn.submitted':
      return ['submitted', activity.turn_id];
    case 'step.committed': {
      const tokens = `${formatShortCount(activity.input_tokens)}/${formatShortCount(activity.output_tokens)} tokens`;
      const time = activity.model_ms === null ? '' : ` in ${formatShortDuration(activity.model_ms)}`;
      return [`step ${activity.step}`, `${tokens}${time}${failure || ` ${activity.finish_reason ?? ''}`}`];
    }
    case 'call.started':
      return ['call', activity.name];
    case 'call.ended': {
      const time = activity.duration_ms === null ? '' : ` in ${formatShortDuration(activity.duration_ms)}`;
      return ['result', `${activity.name} ${activity.status}${time}${failure}`];
    }
    case 'turn.ended':
      return ['end', `${activity.status} in ${formatShortDuration(activity.duration_ms)}${failure}`];
  }
}

export function formatActivity(activity: Activity, width: number): string {
  const [what, rest] = wordsOf(activity);
  const agent = cut(toLine(activity.agent), AGENT_WIDTH).padEnd(AGENT_WIDTH);
  const time = new Date(activity.at).toTimeString().slice(0, 8);
  return cut(`${time}  ${what.padEnd(9)}  ${agent} ${toLine(rest)}`.trimEnd(), width);
}
