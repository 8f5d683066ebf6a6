/** Requests for tests, with cards of every kind. */
import type { CardContent } from '@boxcar/kernel';
import type { AdapterRequest, PackedCard } from '../adapter.js';
import type { Target } from '../targets/target.js';

export const textCard = (id: string, text: string): PackedCard => ({
  id,
  type: 'task.context',
  role: 'user',
  content: { kind: 'text', text },
});

const EVERY_KIND: Readonly<Record<string, CardContent>> = {
  text: { kind: 'text', text: 'The harbour has four cranes.' },
  json: { kind: 'json', data: { cranes: 4, names: ['a', 'b'] } },
  fields: { kind: 'fields_schema', fields: [{ name: 'total', type: 'number' }] },
  tool_call: {
    kind: 'tool_call',
    tool_call_id: 'call-1',
    provider_call_id: 'call-1',
    name: 'count',
    arguments: { what: 'cranes' },
  },
  tool_result: {
    kind: 'tool_result',
    tool_call_id: 'call-1',
    name: 'count',
    status: 'success',
    result: { cranes: 4 },
  },
  file: {
    kind: 'file',
    uri: 'https://files.example/harbour.pdf',
    checksum: 'sha256:00',
    content_type: 'application/pdf',
  },
  image: {
    kind: 'file',
    uri: 'https://files.example/harbour.png',
    checksum: 'sha256:01',
    content_type: 'image/png',
  },
  local_file: {
    kind: 'file',
    uri: 'blob:sha256:02',
    checksum: 'sha256:02',
    content_type: 'application/pdf',
    preview: 'The first line.',
  },
};

/** One card of every kind; ids are their names. */
export const everyCard = (): readonly PackedCard[] =>
  Object.entries(EVERY_KIND).map(([id, content]) => ({ id, type: `task.${id}`, role: null, content }));

export const requestFor = (target: Target, given: Partial<AdapterRequest> = {}): AdapterRequest => ({
  handoff_id: '0197c1a2-0000-7000-8000-000000000001',
  source_agent: 'planner',
  target_agent: 'writer',
  task: 'Describe the harbour.',
  context: {},
  payload: null,
  cards: [],
  target,
  ...given,
});
