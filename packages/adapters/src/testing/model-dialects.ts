/** The wire formats of OpenAI and Anthropic, in the form that the model tests use. */
import { anthropicWire, responsesWire, type Wire } from '@boxcar/llm/testing';
import type { Dialect } from './platform-server.js';

const dialectOf = (wire: Wire): Dialect => ({
  keyHeader: wire.keyHeader,
  read: ({ method, path, text }) => {
    if (method !== 'POST' || path !== `${wire.base}${String(wire.path)}`)
      throw new Error(`no ${method} ${path}`);
    const { tools, isStreaming } = wire.read(JSON.parse(text), { path, answers: [] });
    if (tools.length > 0) throw new Error('a handoff offers no tools');
    if (!isStreaming) throw new Error('a handoff streams');
  },
  answer: (text) => ({
    status: 200,
    headers: { 'content-type': 'text/event-stream; charset=utf-8' },
    frames: wire.events({ text }),
  }),
  error: (status, message) =>
    wire.error({ message, ...(status === 429 ? { code: 'rate_limit_exceeded' } : {}) }),
});

export const openaiDialect = dialectOf(responsesWire);
export const anthropicDialect = dialectOf(anthropicWire);
