/** The resources that clients can list. */
import type { Address } from './address.js';
import { JSON_TYPE } from './body.js';

interface Entry {
  readonly kind: Address['kind'];
  readonly name: string;
  readonly title: string;
  readonly description: string;
  readonly mimeType: string;
}

export interface StaticResource extends Entry {
  readonly uri: string;
}

export interface TemplateResource extends Entry {
  /** The first template is for the first page; the protocol matches a cursor only with a separate template. */
  readonly templates: readonly string[];
}

export const STATIC: readonly StaticResource[] = [
  {
    kind: 'sessions',
    uri: 'handoff://sessions',
    name: 'sessions',
    title: 'Sessions',
    description: 'The sessions that you may read, the newest first, in pages of 50.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'health',
    uri: 'handoff://health',
    name: 'health',
    title: 'Health',
    description: 'The state of the database connection and the number of workers.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'metrics',
    uri: 'handoff://metrics',
    name: 'metrics',
    title: 'Metrics',
    description: 'Numbers of the project in the text format of Prometheus.',
    mimeType: 'text/plain; version=0.0.4',
  },
];

const paged = (template: string): readonly string[] => [template, `${template}{?cursor}`];

export const TEMPLATES: readonly TemplateResource[] = [
  {
    kind: 'sessions',
    templates: ['handoff://sessions{?cursor}'],
    name: 'sessions_page',
    title: 'More sessions',
    description: 'The next page of sessions. The cursor is the next_cursor of the previous page.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'context',
    templates: paged('handoff://context/{session_key}'),
    name: 'context',
    title: 'Context of a session',
    description: 'The entries of a session, in pages of up to 500 entries or 256 KiB.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'summary',
    templates: ['handoff://summary/{session_key}'],
    name: 'summary',
    title: 'Summary of a session',
    description: 'The summary of a session: a text, key points and participants.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'agent_sessions',
    templates: paged('handoff://agents/{agent_id}/sessions'),
    name: 'agent_sessions',
    title: 'Sessions of an agent',
    description: 'The sessions that an agent has registered or received.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'tape',
    templates: ['tape://{workspace}/{+tape}/entry/{position}'],
    name: 'tape_entry',
    title: 'Entry of a tape',
    description: 'One entry of a tape.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'tape',
    templates: ['tape://{workspace}/{+tape}/anchor/{+name}'],
    name: 'tape_anchor',
    title: 'Anchor of a tape',
    description:
      'The latest anchor with this name and the entries after it, in pages. Add ?head= to read up to a position, and cursor= for the next page.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'run',
    templates: paged('boxcar://runs/{run_id}'),
    name: 'run',
    title: 'Run',
    description: 'The turns of a run, in the order in which they were made.',
    mimeType: JSON_TYPE,
  },
  {
    kind: 'turn_context',
    templates: paged('boxcar://turns/{turn_id}/context'),
    name: 'turn_context',
    title: 'Context of a turn',
    description: 'The cards in the context of a turn.',
    mimeType: JSON_TYPE,
  },
];
