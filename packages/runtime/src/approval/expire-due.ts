import type { TurnId } from '@boxcar/kernel';
import { expireDueTickets } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';

/** Expires requests whose time is over. @returns The turns whose calls asked; nothing has woken them yet. */
export async function expireDue(
  { pool, log }: Pick<RuntimeCore, 'pool' | 'log'>,
  options: { readonly limit: number; readonly now?: Date | undefined },
): Promise<readonly TurnId[]> {
  const expired = await expireDueTickets(pool, options);
  for (const { id } of expired) log('info', 'approval.updated', { ticket_id: id, status: 'expired' });
  return expired.flatMap(({ turnId }) => (turnId === null ? [] : [turnId]));
}
