/** Health, and metrics for Prometheus. */
import { KernelError } from '@boxcar/kernel';
import { findActor } from '@boxcar/runtime';
import { findLiveWorkers } from '@boxcar/store/health';
import { type ProjectNumber, readProjectNumbers } from '@boxcar/store/report';
import type { McpClientScope } from '../client-scope.js';
import { type Body, jsonBody } from './body.js';

/** Whether the database answers, and the number of workers. */
export async function healthBody({ runtime }: McpClientScope): Promise<Body> {
  try {
    const workers = await findLiveWorkers(runtime.pool);
    return jsonBody({ status: 'ok', database: 'ok', live_workers: workers.length });
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    return jsonBody({ status: 'unhealthy', database: error.code, live_workers: null });
  }
}

interface Metric {
  readonly name: string;
  readonly help: string;
  readonly label: string | null;
}

const METRICS: Readonly<Record<ProjectNumber['name'], Metric>> = {
  sessions: {
    name: 'boxcar_handoff_sessions',
    help: 'Sessions of the project by stored status, among the newest 10,000.',
    label: 'status',
  },
  open_handoffs: {
    name: 'boxcar_open_handoffs',
    help: 'Handoffs of the project that have not ended, by phase, up to 10,000.',
    label: 'phase',
  },
  turns: {
    name: 'boxcar_open_turns',
    help: 'Turns of the project that have not ended, by status, up to 10,000 each.',
    label: 'status',
  },
  workers: { name: 'boxcar_live_workers', help: 'Workers with a valid lease.', label: null },
};

/** The text format of Prometheus. */
function metricsText(numbers: readonly ProjectNumber[]): string {
  const blocks = Object.entries(METRICS).map(([kind, { name, help, label }]) => {
    const lines = numbers
      .filter((number) => number.name === kind)
      .map((number) => `${name}${label === null ? '' : `{${label}="${number.label}"}`} ${number.value}`);
    return [`# HELP ${name} ${help}`, `# TYPE ${name} gauge`, ...lines].join('\n');
  });
  return `${blocks.join('\n')}\n`;
}

export async function metricsBody({ runtime, projectId, as }: McpClientScope): Promise<Body> {
  const actor = await findActor(runtime.pool, projectId, as);
  const numbers = await readProjectNumbers(runtime.pool, actor.projectId);
  return { mimeType: 'text/plain; version=0.0.4', text: metricsText(numbers) };
}
