export const LOCK_KEY = 42_042_042;
