//! Certificate authority, serving certificate, rotation and bundle injection.
