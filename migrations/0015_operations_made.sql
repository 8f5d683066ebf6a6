-- min_compatible: 12
-- What a submission made is recorded by the kernel: handlers may answer whatever they like.

alter table boxcar.operations
  -- batches of new turns, and new turns that belong to none of these; null: written by a build that does not know this column
  add column made uuid[];
