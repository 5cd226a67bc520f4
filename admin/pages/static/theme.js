// Loaded before anything is drawn, so that a chosen theme does not flash.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage the system's theme holds.
}
document.documentElement.classList.add("scripted");
