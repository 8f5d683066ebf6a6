// A program that shares nothing with the workers but the database and the queue. Prints one JSON object.
import { HandoverPacker } from '@boxcar/runtime';
import { createPostgresBackend, createRedisBackend, withBackend } from 'bullmq';
import { Redis } from 'ioredis';
import pg from 'pg';

const { DATABASE_URL, REDIS_URL } = process.env;
const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 2 });
const packer = new HandoverPacker({ db: pool });

async function countRows() {
  const { rows } = await pool.query(
    'select (select count(*)::int from boxcar.cards) as cards, (select count(*)::int from boxcar.boxes) as boxes',
  );
  return rows[0];
}

/** Packs inside a transaction of our own; nothing of it exists before the commit, and nothing after a rollback. */
async function packInOwnTransaction(end) {
  const tx = await pool.connect();
  try {
    await tx.query('begin');
    const rulesBoxId = await packer.createBox({
      projectId: 'default',
      sourceAgentId: 'operator',
      cards: [{ type: 'house.rule', content: { kind: 'text', text: 'Every change has a test.' } }],
      tx,
    });
    const packed = await packer.packContext({
      projectId: 'default',
      toolSuffix: 'own-service',
      sourceAgentId: 'operator',
      arguments: { profile_name: 'reviewer', instruction: 'Look around.', background: [rulesBoxId] },
      handover: {
        context_packing_config: {
          pack_arguments: [{ arg_key: 'instruction' }],
          inherit_context: { include_boxes_from_args: ['background'], include_parent: true },
        },
      },
      tx,
    });
    await tx.query(end);
    return { rulesBoxId, packed };
  } finally {
    tx.release();
  }
}

const before = await countRows();
await packInOwnTransaction('rollback');
const afterRollback = await countRows();
const { rulesBoxId, packed } = await packInOwnTransaction('commit');
const afterCommit = await countRows();

const connection = REDIS_URL
  ? new Redis(REDIS_URL, { maxRetriesPerRequest: null })
  : { connectionString: DATABASE_URL, max: 3 };
const { Queue } = withBackend(REDIS_URL ? createRedisBackend : createPostgresBackend);
const queue = new Queue('boxcar-primitives', { connection });
const jobs = await Promise.all(
  ['src/auth.ts', 'src/list.ts', 'README.md', 'src/auth/keys.ts'].map((path) =>
    queue.add('review_change', { project_id: 'default', arguments: { path, rules_box_id: rulesBoxId } }),
  ),
);

/** Events are a hint at best; the job itself is asked until it has an answer. */
async function answerOf({ id }) {
  for (let attempt = 0; attempt < 600; attempt++) {
    // The state first: a job that was read before it ended has no answer in it.
    const state = await queue.getJobState(id);
    if (state === 'completed') return (await queue.getJob(id)).returnvalue;
    if (state === 'failed') throw new Error((await queue.getJob(id)).failedReason);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`job ${id} has no answer`);
}

const answers = await Promise.all(jobs.map(answerOf));
await queue.close();
if (REDIS_URL) connection.disconnect();
await pool.end();
console.log(
  JSON.stringify({ before, afterRollback, afterCommit, attached: packed.attachedCardIds.length, answers }),
);
