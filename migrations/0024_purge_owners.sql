-- min_compatible: 15
-- A mark of a purge belongs to the purge that has set it, and an agent that makes something is not removed meanwhile.

-- Null: set by a build that does not say so. Marks of an older build last for half an hour, those of newer ones are short and renewed.
alter table boxcar.purging add column purge_id uuid;

-- Locks the agents that a box or an agent names, as a foreign key would: its maker, its owner, the one it was cloned from. A purge that has these
-- agents is waited for. The operator of a project, which most rows name, is never removed. After the statement, which may also make the agents.
create function boxcar.hold_agents() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  wanted uuid[];
  gone uuid;
begin
  if tg_op = 'UPDATE' then
    wanted := array(select new.maker_agent_id from boxcar.projects p where p.id = new.project_id and p.operator_agent_id <> new.maker_agent_id);
  elsif tg_table_name = 'boxes' then
    wanted := array(select distinct m.maker_agent_id from made m join boxcar.projects p on p.id = m.project_id where m.maker_agent_id <> p.operator_agent_id);
  else
    wanted := array(select distinct x.id from made m join boxcar.projects p on p.id = m.project_id
      cross join lateral (values (m.owner_agent_id), (m.derived_from)) x(id) where x.id <> p.operator_agent_id);
  end if;
  if cardinality(wanted) = 0 then return null; end if;
  perform from boxcar.agents a where a.id = any (wanted) and a.xmin <> pg_current_xact_id()::xid order by a.id for key share;
  select w.id into gone from unnest(wanted) as w(id) where not exists (select from boxcar.agents a where a.id = w.id) limit 1;
  if gone is not null then
    raise exception 'agent % does not exist', gone using errcode = 'BX002', detail = gone::text;
  end if;
  return null;
end $$;
create trigger boxes_hold_makers after insert on boxcar.boxes
  referencing new table as made for each statement execute function boxcar.hold_agents();
create trigger boxes_hold_next_maker after update of maker_agent_id on boxcar.boxes
  for each row when (new.maker_agent_id is distinct from old.maker_agent_id) execute function boxcar.hold_agents();
create trigger agents_hold_owners after insert on boxcar.agents
  referencing new table as made for each statement execute function boxcar.hold_agents();
