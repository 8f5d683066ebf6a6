import { newId } from '@boxcar/runtime';
import { PROFILE, readReceipt } from '../boxcar/system.js';
import { insertBox, readBoxes } from '../floor/rows.js';
import type { Bench, Figures } from '../suite.js';
import { PROMPT } from '../system.js';
import { type Boxes, benchSizes, type World } from './world.js';

/**
 * `HandoverPacker.packContext` in the name of an agent with grants for three overlapping boxes: it packs each card once and writes a
 * manifest. The floor reads the same ids in one plain statement and inserts one row with them.
 */
export const benchPack = (bench: Bench): Promise<Figures> =>
  benchSizes(bench, 'pack', async (world, boxes) => {
    const agentId = await makeReader(world, boxes);
    return { boxcar: () => packOnce(world, boxes, agentId), floor: () => packBare(world, boxes) };
  });

/** An agent that is not the operator, so that it needs grants to read. */
async function makeReader({ runtime }: World, boxes: Boxes): Promise<string> {
  const { agent_id: grantee } = readReceipt(
    await runtime.submit('launch_principal', { profile_name: PROFILE.name, instruction: PROMPT }),
  );
  for (const boxId of boxes.ids)
    await runtime.packer.grantBox({ projectId: 'default', sourceAgentId: 'operator', boxId, grantee });
  return grantee;
}

async function packOnce({ runtime }: World, boxes: Boxes, agentId: string): Promise<void> {
  const { attachedCardIds } = await runtime.packer.packContext({
    projectId: 'default',
    toolSuffix: 'bench',
    sourceAgentId: agentId,
    arguments: { profile_name: PROFILE.name, instruction: PROMPT, background: [...boxes.ids] },
    handover: {
      context_packing_config: {
        pack_arguments: [{ arg_key: 'instruction' }],
        inherit_context: { include_boxes_from_args: ['background'], include_parent: true },
      },
    },
  });
  // The instruction precedes them, and the parent pointer follows them.
  check(attachedCardIds.slice(1, -1), boxes);
}

async function packBare({ pool }: World, boxes: Boxes): Promise<void> {
  const ids = [...new Set((await readBoxes(pool, boxes.floorIds)).flat())];
  await insertBox(pool, newId(), ids);
  check(ids, boxes);
}

function check(found: readonly string[], { cardIds }: Boxes): void {
  const isSame = found.length === cardIds.length && found.every((id, index) => id === cardIds[index]);
  if (!isSame) throw new Error(`packed ${found.length} cards instead of the ${cardIds.length} in order`);
}
