// Sets the remembered theme before the page is drawn.
try {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage, the theme is the system's.
}
