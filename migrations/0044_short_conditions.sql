-- min_compatible: 15
-- A statement that updates a row parses the conditions of the row's triggers from their text each time it runs. Nearly all updates of boxes
-- move the head of a tape, so the condition that they meet has the guards of the head and of context boxes alone. What never changes once
-- a box is made is guarded by a trigger for statements that name such a column.
drop trigger boxes_sealed on boxcar.boxes;
create trigger boxes_sealed before update on boxcar.boxes
  for each row when (old.kind = 'context' or new.head_position < old.head_position or (old.archived_at is not null and new.head_position <> old.head_position))
  execute function boxcar.refuse_change();
create trigger boxes_fixed before update of kind, project_id, parent_box_id, fork_position, line_boxes, line_ends on boxcar.boxes
  for each row when (new.kind <> old.kind or new.project_id <> old.project_id or new.parent_box_id is distinct from old.parent_box_id
    or new.fork_position is distinct from old.fork_position or new.line_boxes is distinct from old.line_boxes or new.line_ends is distinct from old.line_ends)
  execute function boxcar.refuse_change();
