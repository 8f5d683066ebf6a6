import { adapterContract } from '../testing/adapter-contract.js';
import { anthropicDialect, openaiDialect } from '../testing/model-dialects.js';
import { AnthropicHandoffAdapter, OpenAIHandoffAdapter } from './model-adapter.js';

const shared = {
  secrets: ['writer-large-2'],
  requests: 1,
  notCarried: ['local_file'],
  isStreaming: true,
} as const;

const members = {
  model: 'writer-large-2',
  api_key_env: 'CONTRACT_KEY',
  instructions: 'Be brief.',
  max_output_tokens: 500,
} as const;

adapterContract({
  ...shared,
  name: 'OpenAIHandoffAdapter',
  createAdapter: () => new OpenAIHandoffAdapter(),
  dialect: () => openaiDialect,
  targetAt: (origin) => ({ ...members, platform: 'openai', base_url: `${origin}/v1` }),
});

adapterContract({
  ...shared,
  name: 'AnthropicHandoffAdapter',
  createAdapter: () => new AnthropicHandoffAdapter(),
  dialect: () => anthropicDialect,
  targetAt: (origin) => ({ ...members, platform: 'anthropic', base_url: `${origin}/v1` }),
});
