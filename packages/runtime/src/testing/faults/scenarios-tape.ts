import type { Scenario } from './scenario.js';

const WHY = { reason: 'help is needed', summary: 'this far' };

/** A named tape, in the form in which the first program that names it makes it. */
const SHARED = `
  with made as (
    insert into boxcar.boxes (
      id, project_id, kind, owner_agent_id, maker_agent_id, tape_name, incarnation, head_position,
      last_anchor_position, view_position, anchor_count
    )
    select '01a00000-0000-7000-8000-0000000000aa', id, 'tape', operator_agent_id, operator_agent_id, 'shared', 1, 2,
      1, 1, 1
    from boxcar.projects
    where name = 'default'
    returning id
  )
  insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, payload, anchor_name, author_id)
  select made.id, 1, 'anchor', p.bootstrap_card_id, 10, null::json, 'session/start', 'operator'
  from made, boxcar.projects p
  where p.name = 'default'
  union all
  select
    made.id, 2, 'event', null, 0,
    '{"name":"handoff","data":{"name":"session/start","state":{"owner":"human"}}}'::json,
    null, 'operator'
  from made`;

/** A turn hands its tape to a new agent and waits. From outside, a tape is handed over permanently, and no caller waits. */
export const handoffs: Scenario = {
  name: 'context_handoff',
  profiles: [
    {
      name: 'lead',
      tools: ['context_handoff'],
      delegation_policy: { target_profiles: ['expert'] },
      script: [
        {
          say: 'I need help',
          calls: [
            {
              tool: 'context_handoff',
              arguments: { target_ref: 'expert', ...WHY, intention: { next_steps: 'help' }, wait: true },
            },
          ],
        },
        { say: 'told: {{results/context_handoff/result}}' },
      ],
    },
    { name: 'expert', script: [{ say: 'did {{instruction}}' }] },
    { name: 'heir', script: [{ say: 'took over' }] },
  ],
  prepare: SHARED,
  drive: async (client) => {
    const tape_ref = 'tape://default/shared/entry/2';
    await client.submit('context_handoff', { target_ref: 'heir', ...WHY, tape_ref, ownership: 'transfer' });
    return client.submit('launch_principal', { profile_name: 'lead', instruction: 'go' });
  },
};
