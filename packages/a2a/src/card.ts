/** The card of a public agent, which describes it to other platforms. It contains nothing of the agent's instructions, tools and model. */
import { A2A_PROTOCOL_VERSION, AgentCard } from '@a2a-js/sdk';
import { JSON_TYPE, TEXT_TYPE } from '@boxcar/adapters/a2a';
import type { PublicAgent } from '@boxcar/store';

export const LEGACY_VERSION = '0.3';
/** The version that cards of protocol 0.3 name. */
const LEGACY_CARD_VERSION = '0.3.0';
const BINDING = 'JSONRPC';
const MODES = [TEXT_TYPE, JSON_TYPE];

export interface CardFacts {
  /** The address of the agent, to which messages are sent. */
  readonly url: string;
  /** Whether the agent sends push notifications. */
  readonly pushes: boolean;
}

export function cardOf(
  { name, version, description, tags }: PublicAgent,
  { url, pushes }: CardFacts,
): AgentCard {
  const words = description ?? '';
  const face = { url, protocolBinding: BINDING, tenant: '' };
  return {
    name,
    description: words,
    version: String(version),
    supportedInterfaces: [
      { ...face, protocolVersion: A2A_PROTOCOL_VERSION },
      { ...face, protocolVersion: LEGACY_VERSION },
    ],
    provider: undefined,
    capabilities: { streaming: true, pushNotifications: pushes, extendedAgentCard: false, extensions: [] },
    securitySchemes: {
      key: {
        scheme: {
          $case: 'httpAuthSecurityScheme',
          value: { description: '', scheme: 'Bearer', bearerFormat: '' },
        },
      },
    },
    securityRequirements: [{ schemes: { key: { list: [] } } }],
    defaultInputModes: [...MODES],
    defaultOutputModes: [...MODES],
    skills: [
      {
        id: name,
        name,
        description: words,
        tags: [...tags],
        examples: [],
        inputModes: [],
        outputModes: [],
        securityRequirements: [],
      },
    ],
    signatures: [],
  };
}

/** The card as JSON of protocol 1.0. */
export const cardJson = (agent: PublicAgent, facts: CardFacts): unknown =>
  AgentCard.toJSON(cardOf(agent, facts));

/** The card as JSON of protocol 0.3. It also names the interfaces of 1.0, for peers that speak both protocols. */
export function legacyCardJson(
  { name, version, description, tags }: PublicAgent,
  { url, pushes }: CardFacts,
): unknown {
  const words = description ?? '';
  return {
    name,
    description: words,
    version: String(version),
    url,
    preferredTransport: BINDING,
    protocolVersion: LEGACY_CARD_VERSION,
    supportedInterfaces: [
      { url, protocolBinding: BINDING, protocolVersion: A2A_PROTOCOL_VERSION },
      { url, protocolBinding: BINDING, protocolVersion: LEGACY_VERSION },
    ],
    capabilities: { streaming: true, pushNotifications: pushes },
    securitySchemes: { key: { type: 'http', scheme: 'bearer' } },
    security: [{ key: [] }],
    supportsAuthenticatedExtendedCard: false,
    defaultInputModes: MODES,
    defaultOutputModes: MODES,
    skills: [{ id: name, name, description: words, tags }],
  };
}
