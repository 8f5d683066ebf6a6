import pg from 'pg';
import { ENDED_CHANNEL } from '../floor/rows.js';

/** Learns of ended turns through the notice in their commit. */
export interface Ended {
  close(): Promise<void>;
}

/** @param told - Called with the ids of ended turns. */
export async function listenForEnds(
  databaseUrl: string,
  told: (turnIds: readonly string[]) => void,
): Promise<Ended> {
  const client = new pg.Client({ connectionString: databaseUrl });
  client.on('error', () => undefined);
  client.on('notification', ({ payload = '' }) => told(payload.split(',')));
  await client.connect();
  await client.query(`listen ${ENDED_CHANNEL}`);
  return { close: () => client.end() };
}
