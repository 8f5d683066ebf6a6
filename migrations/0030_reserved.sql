-- min_compatible: 15
-- Holds the number of a migration that is made at the same time; replaced by it.
select 1;
