/**
 * Calls whose stream of events has ended without their answer. The SDK tries to go on with a stream that can be resumed, and then would
 * wait for ever; here such a call is answered with an error.
 */
import type { JSONRPCMessage, RequestId, Transport } from '@modelcontextprotocol/client';

/** What the error of such a call has as its data. */
const LOST = 'the stream of the call has ended without its answer';
const INTERNAL_ERROR = -32_603;

/** The id of a call of a tool. */
function callIdOf(message: JSONRPCMessage | JSONRPCMessage[]): RequestId | undefined {
  if (Array.isArray(message) || !('method' in message) || !('id' in message)) return undefined;
  return message.method === 'tools/call' ? message.id : undefined;
}

/** Once its client is connected. */
export function endLostCalls(transport: Transport): void {
  const open = new Set<RequestId>();
  const send = transport.send.bind(transport);
  const deliver = transport.onmessage;
  transport.onmessage = (message, extra) => {
    if (!('method' in message) && message.id !== undefined) open.delete(message.id);
    deliver?.(message, extra);
  };
  transport.send = async (message, options) => {
    const id = callIdOf(message);
    if (id === undefined) return send(message, options);
    open.add(id);
    options?.requestSignal?.addEventListener('abort', () => open.delete(id), { once: true });
    const onRequestStreamEnd = (): void => {
      options?.onRequestStreamEnd?.();
      if (!open.delete(id)) return;
      const error = { code: INTERNAL_ERROR, message: LOST, data: LOST };
      deliver?.({ jsonrpc: '2.0', id, error });
    };
    try {
      await send(message, { ...options, onRequestStreamEnd });
    } catch (error) {
      open.delete(id);
      throw error;
    }
  };
}

export const isLostCall = (error: unknown): boolean =>
  typeof error === 'object' && error !== null && Reflect.get(error, 'data') === LOST;
