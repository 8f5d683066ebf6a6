-- min_compatible: 15
-- Where the view of a turn's first step begins, when its submission, its session or its profile says so. A build that does not know this would show the turn
-- another prompt: such turns have the format of this migration.
-- Names that no other table has: statements of older builds read all columns of turns beside those of boxes.
alter table boxcar.turns
  -- the anchor that it begins with; 0 = the tape's last one, also in a session that begins earlier; null = as the tape says
  add column own_view_anchor int,
  -- the first entry that belongs to that anchor's view: of a step that the anchor cut, or that its compaction keeps
  add column own_view_position int,
  add check ((own_view_anchor is null) = (own_view_position is null)) not valid;

alter table boxcar.profiles
  -- null = what follows the last anchor
  add column view text check (view = 'full');
