/** A router to a loopback provider, and the requests of its tests. */
import type { Message, Model, ModelRequest } from '@boxcar/kernel';
import { requestOf, userMessage } from '../fixtures/requests.js';
import { createModelRouter } from '../router.js';
import { SERVER_KEY } from './provider-server.js';
import type { Wire } from './wire.js';

const SETTING = {
  openai: 'openai',
  'openai-chat': 'openai',
  anthropic: 'anthropic',
  google: 'google',
  mistral: 'mistral',
  deepseek: 'deepseek',
  'openai-compatible': 'openaiCompatible',
} as const;

/** The router with one provider set up. */
export const routerTo = (
  wire: Wire,
  baseUrl: string | undefined,
  options: { readonly key?: string | undefined; readonly idleTimeoutMs?: number } = {},
): Model => {
  const { key: apiKey = SERVER_KEY, idleTimeoutMs } = options;
  return createModelRouter({ providers: { [SETTING[wire.provider]]: { apiKey, baseUrl }, idleTimeoutMs } });
};

export const TOOLS: ModelRequest['tools'] = [
  {
    name: 'list_files',
    description: 'Lists the files of a folder.',
    parameters: {
      type: 'object',
      properties: { path: { type: 'string' }, depth: { type: 'integer' } },
      required: ['path'],
      additionalProperties: false,
    },
  },
  {
    name: 'tape.handoff',
    description: 'Begins a new phase.',
    parameters: {
      anyOf: [
        {
          type: 'object',
          properties: { name: { type: 'string' }, state: { type: 'object' } },
          required: ['name', 'state'],
        },
        { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] },
      ],
    },
  },
];

/** A request to a provider, with the tools above. */
export const askFor = (
  wire: Wire,
  options: {
    readonly model?: string;
    readonly messages?: readonly Message[];
    readonly tools?: ModelRequest['tools'];
    readonly settings?: ModelRequest['settings'];
    readonly step?: number;
    readonly sharedMessages?: number;
  } = {},
): ModelRequest => {
  const { model = 'model-1', messages = [userMessage('Survey src')], tools = TOOLS, settings = {} } = options;
  const base = requestOf({
    model: `${wire.provider}:${model}`,
    messages,
    sharedMessages: options.sharedMessages,
    step: options.step,
  });
  return { ...base, tools, settings };
};
