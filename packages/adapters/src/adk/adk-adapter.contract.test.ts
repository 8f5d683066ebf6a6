import { a2aDialect } from '../testing/a2a-dialect.js';
import { adapterContract } from '../testing/adapter-contract.js';
import { adkDialect } from '../testing/adk-dialect.js';
import { ADKHandoffAdapter } from './adk-adapter.js';

const createAdapter = () => new ADKHandoffAdapter({ allowPrivate: ['127.0.0.1'], pollMs: 5 });
const shared = { createAdapter, secrets: [] } as const;
const members = { platform: 'adk', api_key_env: 'CONTRACT_KEY', instructions: 'Be brief.' } as const;

adapterContract({
  ...shared,
  name: 'ADKHandoffAdapter, an app of an API server',
  dialect: () => adkDialect(['other', 'harbour-app']),
  targetAt: (origin) => ({ ...members, app: 'harbour-app', base_url: origin }),
  secrets: ['harbour-app'],
  requests: 3,
  notCarried: ['file', 'image', 'local_file'],
  isStreaming: false,
});

for (const version of ['1.0', '0.3'] as const)
  adapterContract({
    ...shared,
    name: `ADKHandoffAdapter, an A2A agent of protocol ${version}`,
    dialect: () => a2aDialect({ version }),
    targetAt: (origin) => ({ ...members, card_url: `${origin}/card.json` }),
    requests: 2,
    notCarried: ['local_file'],
    isStreaming: true,
    recoversCut: true,
  });
