from slime_events.plugins.slime.aliases import install_slime_aliases

install_slime_aliases()  # the functions here import slime's names, as users' do
