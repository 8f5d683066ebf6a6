/** An A2A agent as its card describes it: protocol 1.0, and 0.3 through the SDK's compatibility layer. */
import { type AgentCard, StreamResponse } from '@a2a-js/sdk';
import {
  type Client,
  ClientFactory,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
  type Transport,
} from '@a2a-js/sdk/client';
import { z } from 'zod';
import { type Caller, type Exchange, failureOf } from '../wire/exchange.js';

export interface Agent {
  readonly client: Client;
  readonly isStreaming: boolean;
  /** Whether the agent accepts content of this media type. A card without types accepts all. */
  takes(mediaType: string): boolean;
}

const legacyCompat = { enabled: true } as const;

/** The SDK's own method prints an event that it cannot read to stderr, with the agent's content. */
class QuietRestTransportFactory extends RestTransportFactory {
  override async create(url: string, card: AgentCard): Promise<Transport> {
    const transport = await super.create(url, card);
    if ('_processSseEventData' in transport)
      Reflect.set(transport, '_processSseEventData', (data: string) =>
        StreamResponse.fromJSON(JSON.parse(data)),
      );
    return transport;
  }
}

/** The members that are used. The SDK does not validate a card. */
const cardSchema = z.looseObject({
  supportedInterfaces: z
    .array(
      z.looseObject({ url: z.string(), protocolBinding: z.string(), protocolVersion: z.string().optional() }),
    )
    .min(1),
  defaultInputModes: z.array(z.string()).nullish(),
});

const matches = (mode: string, mediaType: string): boolean => {
  const [type] = mediaType.split('/');
  return mode === mediaType || mode === '*/*' || mode === `${type}/*` || (mode === 'text' && type === 'text');
};

/**
 * Reads the card and chooses the transport. The exchange checks each address: the card's address and the addresses in the card.
 *
 * @throws AdapterError for a card that cannot be read, or that names no transport over HTTP.
 */
export async function openAgent(cardUrl: string, exchange: Exchange, caller: Caller): Promise<Agent> {
  const unreadable = (did: string): Error =>
    failureOf(caller, { code: 'platform_failed', retryable: false }, did);
  const { fetch: fetchImpl } = exchange;
  const resolver = new DefaultAgentCardResolver({ fetchImpl, legacyCompat });
  let card: AgentCard;
  try {
    card = await resolver.resolve(cardUrl, '');
  } catch (error) {
    throw exchange.explain(error, () => unreadable('has a card that cannot be read'));
  }
  const read = cardSchema.safeParse(card);
  if (!read.success) throw unreadable('has a card that cannot be read');
  for (const { url } of read.data.supportedInterfaces) caller.concealer.addAddress(url);
  const factory = new ClientFactory({
    transports: [
      new JsonRpcTransportFactory({ fetchImpl, legacyCompat }),
      new QuietRestTransportFactory({ fetchImpl, legacyCompat }),
    ],
    cardResolver: resolver,
  });
  const modes = read.data.defaultInputModes ?? [];
  try {
    return {
      client: await factory.createFromAgentCard(card),
      isStreaming: card.capabilities?.streaming === true,
      takes: (mediaType) => modes.length === 0 || modes.some((mode) => matches(mode, mediaType)),
    };
  } catch {
    throw unreadable('has an agent without a transport over JSON-RPC or HTTP+JSON');
  }
}
