/**
 * Ends calls whose event stream has ended without their answer. The SDK tries to continue a stream that can be resumed, and could then
 * wait forever; here such a call gets an error as its answer.
 */
import type { JSONRPCMessage, RequestId, Transport } from '@modelcontextprotocol/client';

/** The data of the error of such a call. */
const LOST = 'the stream of the call has ended without its answer';
const INTERNAL_ERROR = -32_603;

/** The id of a tool call. */
function callIdOf(message: JSONRPCMessage | JSONRPCMessage[]): RequestId | undefined {
  if (Array.isArray(message) || !('method' in message) || !('id' in message)) return undefined;
  return message.method === 'tools/call' ? message.id : undefined;
}

/** Must be called after the client is connected. */
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
