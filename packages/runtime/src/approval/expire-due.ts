import { errorText, type TicketId, type TurnId } from '@boxcar/kernel';
import { expireDueTickets } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';

/**
 * Expires overdue requests and continues the handoffs that waited for them.
 *
 * @returns The expired tickets, and the turns whose calls asked. These turns have not been woken yet.
 */
export async function expireDue(
  { pool, log, handoffs }: Pick<RuntimeCore, 'pool' | 'log' | 'handoffs'>,
  options: { readonly limit: number; readonly now?: Date | undefined },
): Promise<{ readonly ticketIds: readonly TicketId[]; readonly turnIds: readonly TurnId[] }> {
  const expired = await expireDueTickets(pool, options);
  for (const { id } of expired) {
    log('info', 'approval.updated', { ticket_id: id, status: 'expired' });
    // If a handoff cannot continue now, the sweep tries again.
    await handoffs.decided(id).catch((error: unknown) => {
      log('warn', 'approval.not_woken', { ticket_id: id, error: errorText(error) });
    });
  }
  return {
    ticketIds: expired.map(({ id }) => id),
    turnIds: expired.flatMap(({ turnId }) => (turnId === null ? [] : [turnId])),
  };
}
