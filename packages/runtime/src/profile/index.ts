export {
  buildProfileCard,
  checkNamesDiffer,
  nameProfile,
  type StoredVersion,
  storeProfiles,
} from './apply-profiles.js';
export {
  findProfileVersions,
  findProject,
  getProfile,
  listProfiles,
  type ProfileRef,
  type ProfileScope,
  type ProfileVersion,
  profileNotFound,
} from './profiles.js';
export {
  archiveProject,
  type CreatedProject,
  type CreateProjectOptions,
  createProject,
  getProject,
} from './projects.js';
